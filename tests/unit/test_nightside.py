"""The dispatcher: which commands it offers, which modules it loads, and its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nightside import COMMANDS, DEVELOPERS, LazyCommand, main

ROOT = Path(__file__).parents[2]
LOADED_BY_HELP = """
import sys
from click.testing import CliRunner
import nightside
assert CliRunner().invoke(nightside.main, ["--help"]).exit_code == 0
print(*(name for name in sys.modules if name.partition(".")[0] in sys.argv[1:]))
"""


def test_help_names_every_command_with_its_line() -> None:
    output = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    for name, (_, short_help) in COMMANDS.items():
        assert any(line.split() == [name, *short_help.split()] for line in output.splitlines())


def test_help_groups_commands_by_who_needs_them() -> None:
    output = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    operators, developers = output.split("Operate:")[1].split("Try, measure and develop:")
    assert {line.split()[0] for line in developers.splitlines() if line} == DEVELOPERS
    assert {line.split()[0] for line in operators.splitlines() if line} == COMMANDS.keys() - DEVELOPERS


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    output = CliRunner().invoke(main, ["completion", shell]).output
    assert f"_NIGHTSIDE_COMPLETE={shell}_complete" in output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("nightside ga", {"gateway"}), ("nightside gateway sta", {"status"}), ("nightside keys add --ten", {"--tenant"})],
)
def test_what_is_typed_is_completed(typed: str, offered: set[str]) -> None:
    asking = {"_NIGHTSIDE_COMPLETE": "zsh_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    output = CliRunner(env=asking).invoke(main, [], prog_name="nightside").output
    assert {line for line in output.splitlines() if line.startswith(tuple(offered))} == offered


def test_help_loads_no_part_of_the_product() -> None:
    heavy = [
        "gateway",
        "controller",
        "loadgen",
        "mesh",
        "protos",
        "aiohttp",
        "grpc",
        "numpy",
        "pydantic",
        "rich",
        "uvloop",
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_HELP, *heavy], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("taken", ["gateway", "protos"])
def test_a_package_that_something_else_brings_is_named_with_its_place(taken: str, tmp_path: Path) -> None:
    other = tmp_path / taken / "__init__.py"
    other.parent.mkdir()
    other.write_text("")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import nightside; nightside.main()"
    command = [sys.executable, "-c", script, "gateway", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"Python takes {taken} from {other}, and not from {ROOT}" in done.stderr


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CliRunner().invoke(main, ["--version"]).output == f"nightside, version {project['version']}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there(name: str) -> None:
    command = main.commands[name]
    assert isinstance(command, LazyCommand)
    assert isinstance(command.load(), click.Command)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: nightside {name} ")


def test_a_target_that_is_no_command_is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="json:dumps is not a command"):
        LazyCommand("dumps", "json:dumps", "Not a command.").load()


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], ["bench", "--nosuch"]])
def test_wrong_use_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_a_misspelt_command_is_recognised() -> None:
    assert "Did you mean 'bench'?" in CliRunner().invoke(main, ["benhc"]).output


@click.command()
@click.option("--found", is_flag=True)
def probe(found: bool) -> None:
    """Command that fails if it finds a problem."""
    if found:
        raise click.ClickException("a problem was found")


@pytest.mark.parametrize(("arguments", "exit_code"), [([], 0), (["--found"], 1), (["--nosuch"], 2)])
def test_a_command_is_given_its_arguments_and_its_exit_code_is_kept(arguments: list[str], exit_code: int) -> None:
    lazy = LazyCommand("probe", f"{__name__}:probe", "Look for a problem.")
    group = click.Group(commands={"probe": lazy})
    assert CliRunner().invoke(group, ["probe", *arguments]).exit_code == exit_code


# Texts of the help

# fmt: off
VERBS = frozenset([
    "Accept", "Add", "Allow", "Announce", "Apply", "Assign", "Break", "Change", "Check", "Compare", "Convert", "Count",
    "Create", "Describe", "Disable", "Do", "Drain", "End", "Explain", "Find", "Fit", "Generate", "Give", "Hold",
    "Inspect", "Keep", "Kill", "Limit", "List", "Listen", "Make", "Manage", "Measure", "Move", "Narrow", "Never",
    "Place", "Play", "Predict", "Price", "Print", "Process", "Publish", "Query", "Read", "Refuse", "Reject",
    "Remove", "Repeat",
    "Replace", "Replay", "Report", "Request", "Resume", "Run", "Scale", "Score", "Select", "Send", "Serve", "Set",
    "Show", "Simulate", "Size", "Skip", "Start", "Stop", "Sum", "Suspend", "Take", "Train", "Try", "Use",
    "Validate", "Verify", "Write",
])
# fmt: on
"""First words of help texts: each tells what the command does, or what the option makes it do."""
RIDDLES = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|whom|whose|whatever|as it is|of ours)\b", re.IGNORECASE
)
OF_RECORDS = {"explain", "audit", "replay"}
"""Commands of gateway/records, whose texts are older than these rules."""


def helped(command: click.Command, name: str) -> Iterator[tuple[str, str, bool]]:
    """Help texts below a command: where it stands, the text, and whether the option may be repeated."""
    loaded = command.load() if isinstance(command, LazyCommand) else command
    yield name, (loaded.help or "").split("\n\n")[0], False
    for option in loaded.params:
        if isinstance(option, click.Option):
            yield f"{name} {option.opts[0]}", option.help or "", option.multiple
    if isinstance(loaded, click.Group):
        for below in loaded.list_commands(click.Context(loaded)):
            found = loaded.get_command(click.Context(loaded), below)
            assert found is not None
            if below not in OF_RECORDS:
                yield from helped(found, f"{name} {below}")


@cache
def all_help() -> list[tuple[str, str, bool]]:
    return [*helped(main, "nightside"), *((name, text, False) for name, (_, text) in COMMANDS.items())]


def test_help_texts_are_sentences_that_begin_with_a_verb() -> None:
    assert len(all_help()) > 300, "nothing is looked at"
    assert [(name, text) for name, text, _ in all_help() if text.split(" ")[0].rstrip(":") not in VERBS] == []
    assert [(name, text) for name, text, _ in all_help() if not text.rstrip().endswith((".", ")"))] == []


def test_help_texts_name_gateways_and_clients() -> None:
    assert [(name, text) for name, text, _ in all_help() if RIDDLES.search(text)] == []


def test_options_that_may_be_repeated_say_so() -> None:
    assert [name for name, text, is_multiple in all_help() if is_multiple != ("repeatable" in text)] == []
