from __future__ import annotations

from tests.upgrade.releases import other_pins

OLD = "click==8.5.0 \\\n    --hash=sha256:aa\n    # via nightside\ngone==1 \\\nsame==2 ; python_version >= '3'\n"
NEW = "click==8.6.0 \\\n    --hash=sha256:bb\nnew==3 \\\nsame==2\n"


def test_packages_whose_pins_differ_are_named_with_both_versions() -> None:
    assert other_pins(OLD, NEW) == ["click 8.5.0 → 8.6.0", "gone 1 → –", "new – → 3"]
    assert other_pins(OLD, OLD) == []
