"""`nightside completion`: prints what makes a shell complete our commands. It changes no file of anybody's."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_NIGHTSIDE_COMPLETE"
_WHERE = {
    "bash": 'eval "$(nightside completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(nightside completion zsh)"    # in ~/.zshrc',
    "fish": "nightside completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and files."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    click.echo(kind(context.find_root().command, {}, "nightside", _VARIABLE).source())
