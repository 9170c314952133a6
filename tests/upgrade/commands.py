"""Parts that the commands share which play something on a mesh and write a page of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path

import aiohttp
import click

from loadgen.demo.processes import DemoFailure
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal, leaves

ROOT = Path(__file__).parents[2]
FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
TREE_CHANGED = "the working tree changed meanwhile: no page is written"


def made(page: Path, keep: Path | None) -> Path | None:
    """Folder for the mesh's files, once it is made. Raises BadParameter where it exists, or the page has no folder."""
    if not page.parent.is_dir():
        raise click.BadParameter(f"there is no folder {page.parent}", param_hint="-o")
    if keep is None:
        return None
    if keep.exists():
        raise click.BadParameter(f"{keep} exists", param_hint="--keep")
    keep = keep.resolve()
    keep.mkdir(parents=True)
    return keep


def played_to_end(play: Coroutine[None, None, None]) -> str:
    """Play it; returns why it could not be played to its end. Exits after a signal."""
    reasons: list[str] = []
    is_interrupted = False
    try:
        is_interrupted = asyncio.run(ends_by_signal(play))
    except* (DemoFailure, aiohttp.ClientError, OSError) as failures:
        reasons = [str(each) or type(each).__name__ for each in leaves(failures)]
    if is_interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
    return "\n".join(reasons)


def write(page: Path, text: str, missed: Sequence[str], why: str) -> None:
    """Write the page, or show it if it must not be written. Raises ClickException for that, and for missed aims."""
    if why:
        click.echo(text)
        raise click.ClickException(why)
    page.write_text(text)
    click.echo(page)
    if missed:
        raise click.ClickException("\n".join(["not met:", *missed]))
