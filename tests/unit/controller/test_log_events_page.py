from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from controller.commands import cli
from controller.log_events_page import markdown

PAGE = Path(__file__).parents[3] / "docs/reference/log_events.md"


def test_the_page_is_as_the_registries_are_now() -> None:
    assert PAGE.read_text() == markdown(), "run make log-events-page"


def test_an_event_has_a_row() -> None:
    row = (
        "`replicas_reassigned` | info | `assigned`, `unassigned` | Replicas are reassigned between gateways. | Nothing."
    )
    assert f"| {row} |\n" in markdown()


def test_other_commands_do_not_load_the_gateway_s_events() -> None:
    script = "import sys, controller.commands; print(*sys.modules, sep=chr(10))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "controller.log_events" in loaded
    assert "mesh.gateway_log_events" not in loaded


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["log-events"])
    assert (printed.exit_code, printed.output) == (0, markdown())
    written = CliRunner().invoke(cli, ["log-events", "-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == markdown()
