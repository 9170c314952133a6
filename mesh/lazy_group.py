"""Group of commands, each loaded when it is called: a small command does not wait for what a large one needs.

It loads modules by name, and knows none.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Group whose commands are targets, `module:attribute`, by their names. Its help loads all of them."""

    def __init__(self, *arguments: Any, targets: Mapping[str, str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._targets = targets

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._targets})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._targets:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._targets[cmd_name].partition(":")
        gc.disable()  # modules stay: collecting among them takes a tenth of the start
        try:
            command = getattr(import_module(module), attribute)
        finally:
            gc.enable()
        assert isinstance(command, click.Command), f"{self._targets[cmd_name]} is not a command"
        return command
