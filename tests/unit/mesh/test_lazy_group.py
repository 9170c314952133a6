"""Group of commands that are loaded when they are called."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mesh.lazy_group import LazyGroup

SOURCE = """
import click

NUMBER = 3

@click.command()
def say():
    \"\"\"Say who is asked.\"\"\"
    click.echo(__name__)
"""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """Group of a command of its own, and of two commands and a number of modules that nothing has loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("lazy_one", "lazy_two"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
        monkeypatch.delitem(sys.modules, name, raising=False)
    group = LazyGroup(targets={"one": "lazy_one:say", "two": "lazy_two:say", "number": "lazy_one:NUMBER"})
    group.add_command(click.Command("zero", callback=lambda: click.echo("zero")))
    return group


@pytest.mark.parametrize(("name", "said", "loaded"), [("one", "lazy_one\n", {"lazy_one"}), ("zero", "zero\n", set())])
def test_a_call_loads_its_command_and_no_other(group: LazyGroup, name: str, said: str, loaded: set[str]) -> None:
    assert CliRunner().invoke(group, [name]).output == said
    assert {"lazy_one", "lazy_two"} & sys.modules.keys() == loaded


def test_the_help_names_every_command_in_order(group: LazyGroup) -> None:
    assert group.list_commands(click.Context(group)) == ["number", "one", "two", "zero"]
    shown = group.get_command(click.Context(group), "two")
    assert shown is not None
    assert shown.get_short_help_str() == "Say who is asked."


def test_a_name_that_is_not_listed_is_wrong_use(group: LazyGroup) -> None:
    assert CliRunner().invoke(group, ["three"]).exit_code == 2


def test_a_target_that_is_no_command_is_our_own_fault(group: LazyGroup) -> None:
    with pytest.raises(AssertionError, match="lazy_one:NUMBER is not a command"):
        group.get_command(click.Context(group), "number")
