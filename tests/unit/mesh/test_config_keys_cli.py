from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from mesh.config_keys_cli import config_keys_command, page_of, with_meanings
from mesh.settings_reference import Key

INTRODUCTION = ["# Title"]
KEYS = [Key("gateway", "name", "", "", "required", "name-1", "Name of the gateway. None: a.")]
COMMAND = config_keys_command(INTRODUCTION, lambda: KEYS, "region file")


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(COMMAND)
    assert (printed.exit_code, printed.output) == (0, page_of(INTRODUCTION, KEYS, ""))
    written = CliRunner().invoke(COMMAND, ["-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == printed.output


def test_an_example_is_shown_and_explained(tmp_path: Path) -> None:
    example = tmp_path / "example.yaml"
    example.write_text("gateway: us-a # old\n")
    printed = CliRunner().invoke(COMMAND, ["--example", str(example)])
    assert "| `us-a` |" in printed.output
    assert example.read_text() == "gateway: us-a # Name of the gateway. `null`: a.\n"
    assert with_meanings(example.read_text(), KEYS) == example.read_text()
