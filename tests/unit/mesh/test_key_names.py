from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.region_file import RegionFile
from gateway.security.keys import KeysFile, read_keys_file
from mesh.faults import ConfigError
from mesh.key_names import meant_by
from mesh.settings import FileModel
from tests.support.region_files import SMALLEST, region_faults


@pytest.mark.parametrize(
    ("location", "meant"),
    [
        (("replica",), "replicas"),
        (("limits", "body_maximum"), "body_max"),
        (("listen", "tls", "certifcate"), "certificate"),
        (("replicas", 0, "modells"), "models"),
        (("replicas", 3, "tls", "cafile"), "ca_file"),
        (("peers", 0, "adress"), "address"),
        (("body_max",), "limits.body_max"),
        (("locality",), "pools[].expert_locality"),
        (("limits", "keep_alive_comment"), "keep_alive_comments"),
        (("colour",), None),
        (("nowhere", "at", "all"), None),
    ],
)
def test_the_nearest_key_at_that_place_is_named_or_one_elsewhere(
    location: tuple[str | int, ...], meant: str | None
) -> None:
    assert meant_by(RegionFile, location) == meant


def test_a_region_file_says_so_with_its_line(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "limits:\n  body_maxi: 1MiB\n")
    assert "limits.body_maxi: is not a known key; is `body_max` meant?" in fault
    (fault,) = region_faults(tmp_path, SMALLEST + "colour: red\n")
    assert fault.endswith("colour: is not a known key")


def test_so_does_every_file_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys:\n  - {id: a, tenannt: acme}\n")
    with pytest.raises(ConfigError, match=r"keys\[0\]\.tenannt: is not a known key; is `tenant` meant"):
        read_keys_file(file)
    assert meant_by(KeysFile, ("kyes",)) == "keys"


def test_a_model_that_refers_to_itself_is_no_trap() -> None:
    class Tree(FileModel):
        name: str
        children: tuple[Tree, ...] = ()

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    assert meant_by(Tree, ("children", 0, "children", 1, "nmae")) == "name"
