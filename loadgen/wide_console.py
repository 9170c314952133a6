"""The console that commands print tables on: as wide as a terminal is, and wide enough for any table elsewhere."""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 160
"""Columns when the output is no terminal: rich would take 80, and cut off what is wider."""


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)
