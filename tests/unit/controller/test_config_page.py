from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from controller.commands import cli
from controller.config_page import controller_file_page

PAGE = Path(__file__).parents[3] / "docs/reference/controller_file.md"


def test_the_page_is_as_the_models_are_now() -> None:
    assert PAGE.read_text() == controller_file_page(), "run make config-pages"


def test_keys_of_all_depths_are_on_the_page() -> None:
    rows = controller_file_page().splitlines()
    assert any(row.startswith("| `controller` | name | required |") for row in rows)
    assert any(row.startswith("| `store.postgresql.hosts` | list of address | required |") for row in rows)
    assert any(row.startswith("| `link.message_max` | size | `32MiB` |") for row in rows)
    assert any(row.startswith("| `regions.NAME.jurisdiction` | string | required |") for row in rows)


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["config-keys"])
    assert (printed.exit_code, printed.output) == (0, controller_file_page())
    written = CliRunner().invoke(cli, ["config-keys", "-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == controller_file_page()
