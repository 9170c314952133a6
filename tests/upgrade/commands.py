"""Functions shared by commands that play something on a mesh and write a page of it."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import click

from loadgen.demo.processes import DemoFailure
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal, leaves

ROOT = Path(__file__).parents[2]
FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
TREE_CHANGED = "the working tree changed meanwhile: no page is written"


def checked(page: Path, keep: Path | None) -> Path | None:
    """Absolute path of the folder to be kept. Raises BadParameter where it exists, or the page has no folder."""
    if not page.parent.is_dir():
        raise click.BadParameter(f"there is no folder {page.parent}", param_hint="-o")
    if keep is None:
        return None
    if keep.exists():
        raise click.BadParameter(f"{keep} exists", param_hint="--keep")
    return keep.resolve()


@contextmanager
def new_folder(keep: Path | None) -> Iterator[Path]:
    """Make the folder of the mesh's files: `keep`, or else one that is removed at the end. Raises OSError."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="nightside-mesh-") as name:
        yield Path(name)


def played_to_end(play: Coroutine[None, None, None]) -> str:
    """Play it; returns why it could not be played to its end. Exits after a signal."""
    reasons: list[str] = []
    is_interrupted = False
    try:
        is_interrupted = asyncio.run(ends_by_signal(play))
    except* (DemoFailure, aiohttp.ClientError, AssertionError, OSError, subprocess.SubprocessError) as failures:
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
