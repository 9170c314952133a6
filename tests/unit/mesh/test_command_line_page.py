from __future__ import annotations

from pathlib import Path

import click
import pytest

import nightside
from mesh.command_line_page import entries_of, markdown

PAGE = Path(__file__).parents[3] / "docs/reference/command_line.md"


@click.group()
def root() -> None:
    """Do things.

    Exit codes: 0 all is well.
    """


@root.group()
def things() -> None:
    """Manage things."""


@things.command()
@click.argument("name", type=click.Choice(["one", "two"]))
@click.option("--size", "-s", type=click.IntRange(1, 9), default=3, help="Set the size, as in a*b or a|b.")
@click.option("--share", type=click.FloatRange(min=0, min_open=True), help="Set the share.")
@click.option("--kind", required=True, type=click.Choice(["a", "b"]), help="Set the kind.")
@click.option("--file", type=click.Path(), help="Read this file.")
@click.option("--quick/--slow", default=False, help="Be quick.")
def add(**_: object) -> None:
    """Add a thing.

    Nothing else
    happens.

    Exit codes: 0 added, 1 not.
    """


@things.command()
def drop() -> None:
    """Drop all things."""


class Later(click.Command):
    def load(self) -> click.Command:
        return drop


root.add_command(Later("later"))
MADE = markdown(root, "program")


def test_the_page_is_as_the_parsers_are_now() -> None:
    assert PAGE.read_text() == markdown(nightside.main), "run make command-line-page"


def test_every_command_has_a_section() -> None:
    names = [entry.context.command_path for entry in entries_of(click.Context(nightside.main, info_name="n"), "")]
    assert len(names) > 90, "nothing is looked at"
    assert PAGE.read_text().count("\n```text\n") == len(names)


@pytest.mark.parametrize(
    "shown",
    [
        "## program things\n\nManage things.\n\n```text\nprogram things [OPTIONS] COMMAND [ARGS]...\n```\n",
        "### program things add\n\nAdd a thing.\n\nNothing else happens.\n",
        "`{one|two}`: one of `one`, `two`.\n",
        "| `--size`, `-s` `NUMBER` | `3` | Set the size, as in a\\*b or a\\|b. At least 1 and at most 9. |\n",
        "| `--share` `NUMBER` |  | Set the share. Above 0. |\n",
        "| `--kind` `NAME` |  | *Required.* Set the kind. One of `a`, `b`. |\n",
        "| `--file` `PATH` |  | Read this file. |\n",
        "| `--quick`, `--slow` |  | Be quick. |\n",
        "\nExit codes: 0 added, 1 not.\n",
    ],
)
def test_a_command_is_shown_as_its_parser_has_it(shown: str) -> None:
    assert shown in MADE


def test_a_command_without_exit_codes_has_those_of_its_group() -> None:
    assert MADE.partition("### program things drop")[2].rstrip().endswith("Exit codes: 0 all is well.")


def test_a_command_that_loads_later_is_shown_by_its_own_name() -> None:
    assert "## program later\n\nDrop all things.\n" in MADE
