"""Page `docs/reference/command_line.md`: every command with its arguments, options, defaults and exit codes, from the
parsers themselves. It runs no command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import click
from msgspec import Struct

_INTRODUCTION = (
    "# Command line",
    "",
    "Every command of `nightside` with its arguments, options, defaults and exit codes. Example, which prints the",
    "status of a running gateway as soon as all is well, or after a minute:",
    "",
    "```console",
    "$ nightside gateway status --admin http://127.0.0.1:9900 --wait 60",
    "```",
    "",
    "`--help` after any command prints the same. An option without a default has no effect unless it is given. This",
    "page is made by `make command-line-page`, which runs `nightside command-line`.",
)
_HEADER = "| option | default | meaning |"
_RULE = "| --- | --- | --- |"
_EXIT_CODES = re.compile(r"^Exit codes: ")
_LEVEL_MAX = 4
"""Deepest level of a heading."""


@runtime_checkable
class Deferred(Protocol):
    """Command that is loaded when it is needed."""

    def load(self) -> click.Command: ...


class CommandEntry(Struct, frozen=True):
    """Command as the page shows it."""

    context: click.Context
    command: click.Command
    exit_codes: str
    """Sentence of the command, or of the nearest group above that has one; empty if none has."""


def markdown(root: click.Command, name: str = "nightside") -> str:
    """Return the page for a program's root command."""
    first, *others = entries_of(click.Context(root, info_name=name), "")
    lines = [*_INTRODUCTION, *_described(first)]
    for entry in others:
        level = min(len(entry.context.command_path.split()), _LEVEL_MAX)
        lines += ["", f"{'#' * level} {entry.context.command_path}", *_described(entry)]
    return "\n".join(lines) + "\n"


def entries_of(context: click.Context, inherited: str) -> Iterator[CommandEntry]:
    """Command of the context and all below it; groups come before their commands."""
    command = context.command
    exit_codes = next(filter(_EXIT_CODES.match, _paragraphs(command.help)), inherited)
    yield CommandEntry(context, command, exit_codes)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, f"{context.command_path} lists {name}, and has no such command"
            loaded = below.load() if isinstance(below, Deferred) else below
            yield from entries_of(click.Context(loaded, parent=context, info_name=name), exit_codes)


def _described(entry: CommandEntry) -> Iterator[str]:
    context, command = entry.context, entry.command
    for paragraph in _paragraphs(command.help):
        if not _EXIT_CODES.match(paragraph):
            yield from ("", _plain(paragraph))
    yield from ("", "```text", f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "```")
    rows = [_row(option, context) for option in command.params if isinstance(option, click.Option)]
    arguments = [_choices(each, context) for each in command.params if isinstance(each, click.Argument)]
    yield from (line for choices in arguments if choices for line in ("", choices))
    if rows:
        yield from ("", _HEADER, _RULE, *rows)
    if entry.exit_codes and not isinstance(command, click.Group):
        yield from ("", _plain(entry.exit_codes))


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" `{_value_name(option, context)}`"
    parts = ("*Required.*" if option.required else "", _plain(option.help or ""), _limits(option))
    meaning = " ".join(filter(None, parts))
    return f"| {names}{value} | {_default(option)} | {meaning} |"


def _value_name(option: click.Option, context: click.Context) -> str:
    """Name of an option's value; choices and bounds follow the meaning instead."""
    if option.metavar is None and isinstance(option.type, click.Choice):
        return "NAME"
    if option.metavar is None and isinstance(option.type, click.IntRange | click.FloatRange):
        return "NUMBER"
    return option.make_metavar(context)


def _limits(parameter: click.Parameter) -> str:
    """Sentence on the values that a parameter takes; empty where any value may be given."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return f"One of {', '.join(f'`{name}`' for name in kind.choices)}."
    if isinstance(kind, click.IntRange | click.FloatRange):
        lowest = "" if kind.min is None else f"{'above' if kind.min_open else 'at least'} {kind.min}"
        highest = "" if kind.max is None else f"{'below' if kind.max_open else 'at most'} {kind.max}"
        said = " and ".join(part for part in (lowest, highest) if part)
        return f"{said[0].upper()}{said[1:]}."
    return ""


def _choices(argument: click.Argument, context: click.Context) -> str:
    limits = _limits(argument)
    return f"`{argument.make_metavar(context)}`: {limits[0].lower()}{limits[1:]}" if limits else ""


def _default(option: click.Option) -> str:
    default = option.to_info_dict()["default"]
    return "" if option.required or default in (None, False, "") else f"`{default}`"


def _paragraphs(text: str | None) -> list[str]:
    """Paragraphs of a help text, each on one line."""
    return [" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n")]


def _plain(text: str) -> str:
    """Help text whose marks would be read as Markdown or HTML, escaped outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*|])", r"\\\1", part) for part in parts)
