"""`nightside completion`: prints shell completion scripts. It changes no file."""

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
    """Generate the completion script of SHELL for commands, options and files."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    click.echo(kind(context.find_root().command, {}, "nightside", _VARIABLE).source())
