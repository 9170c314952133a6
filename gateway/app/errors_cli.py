"""`nightside gateway errors`: every error that clients may receive. It asks no running gateway."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.door.errors_page import markdown


@click.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to this file.")
def errors(output: Path | None) -> None:
    """List every error that clients may receive: HTTP status, code, message and what to do."""
    if output is None:
        click.echo(markdown(), nl=False)
    else:
        output.write_text(markdown(), encoding="utf-8")
