from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from controller.commands import cli
from controller.config_keys_cli import INTRODUCTION, controller_file_keys
from mesh.config_keys_cli import page_of, with_meanings

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "reference/controller_file.md"
EXAMPLE = (DOCS / "examples/every_controller_key.yaml").read_text()


def test_the_page_is_as_the_models_are_now() -> None:
    assert PAGE.read_text() == page_of(INTRODUCTION, controller_file_keys(), EXAMPLE), "run make config-pages"


def test_comments_of_the_example_are_the_meanings() -> None:
    assert with_meanings(EXAMPLE, controller_file_keys()) == EXAMPLE, "run make config-pages"


def test_keys_of_all_depths_are_on_the_page() -> None:
    printed = CliRunner().invoke(cli, ["config-keys"])
    assert printed.exit_code == 0
    rows = printed.output.splitlines()
    assert any(row.startswith("| `controller` | name |  |  | required |") for row in rows)
    assert any(row.startswith("| `store.postgresql.hosts` | list of address |  |  | required |") for row in rows)
    assert any(row.startswith("| `link.message_max` | size | bytes | > 0 | `32MiB` |") for row in rows)
    assert any(row.startswith("| `regions.NAME.jurisdiction` | string |  |  | required |") for row in rows)


def test_every_key_has_a_docstring() -> None:
    assert [key.path for key in controller_file_keys() if not key.meaning] == []
