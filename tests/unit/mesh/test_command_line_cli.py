from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

import nightside
from mesh.command_line_page import markdown


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(nightside.main, ["command-line"])
    assert (printed.exit_code, printed.output) == (0, markdown(nightside.main))
    written = CliRunner().invoke(nightside.main, ["command-line", "-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == markdown(nightside.main)
