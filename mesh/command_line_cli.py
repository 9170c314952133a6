"""`nightside command-line`: every command of the program. It runs none of them."""

from __future__ import annotations

from pathlib import Path

import click

from mesh.command_line_page import markdown


@click.command("command-line")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to this file.")
@click.pass_context
def command_line(context: click.Context, output: Path | None) -> None:
    """List every command with its arguments, options, defaults and exit codes."""
    page = markdown(context.find_root().command)
    if output is None:
        click.echo(page, nl=False)
    else:
        try:
            output.write_text(page, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{output}: {error.strerror}") from error
