"""The console on which commands print tables: as wide as the terminal, or a fixed width where output is no terminal."""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 160
"""Columns when the output is no terminal: rich would take 80, and cut off wider tables."""


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)
