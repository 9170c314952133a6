from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gateway.app.commands import cli
from gateway.door.errors_page import markdown


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["errors"])
    assert (printed.exit_code, printed.output) == (0, markdown())
    written = CliRunner().invoke(cli, ["errors", "-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == markdown()
