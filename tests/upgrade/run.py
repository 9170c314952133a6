"""Upgrades a mesh of processes from an earlier version to this tree and back, under load: `make upgrade`.

Exit code 1 if a request failed or another aim was missed, or if it could not be played; 69 if there is no version to
upgrade from.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import aiohttp
import click

from loadgen.demo.processes import DemoFailure
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal, leaves
from loadgen.studies.commands import Machine, tell
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.cloud.programs import why_missing
from tests.upgrade.figures import Played, failures_of, figures_of, judged, page_of
from tests.upgrade.mesh import SLOTS
from tests.upgrade.playing import ANSWER_TOKENS, BATCH_LINES, USED, USERS, WAIT_S, play
from tests.upgrade.releases import (
    LOCK,
    Release,
    is_tag,
    newest_tag,
    other_pins,
    state_of,
    unpacked,
    working_tree,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "upgrade.md"
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
_NEW_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--from", "ref", metavar="REF", help="Upgrade from this version; default: the newest tag v*.")
@click.option("-o", "--output", type=_FILE, help=f"Write here; default: {PAGE.relative_to(ROOT)} for a tag.")
@click.option("--keep", type=_NEW_FOLDER, help="Keep the mesh's files and logs in this new folder.")
def main(ref: str | None, output: Path | None, keep: Path | None) -> None:
    """Upgrade a mesh to this tree and back under load, and write the page."""
    trees = ROOT / "build" / "upgrade"
    trees.mkdir(parents=True, exist_ok=True)
    ref = ref or newest_tag(ROOT)
    page = output or (PAGE if is_tag(ROOT, ref) else trees / "upgrade.md")
    if not page.parent.is_dir():
        raise click.BadParameter(f"there is no folder {page.parent}", param_hint="-o")
    if keep is not None:
        if keep.exists():
            raise click.BadParameter(f"{keep} exists", param_hint="--keep")
        keep = keep.resolve()
        keep.mkdir(parents=True)
    old, new, state = unpacked(ROOT, ref, trees), working_tree(ROOT), state_of(ROOT)
    if missing := why_missing("pg_createcluster"):
        raise click.ClickException(f"the controllers share a PostgreSQL database: {missing}")
    pins = other_pins((old.tree / LOCK).read_text(), (new.tree / LOCK).read_text())
    if pins:
        tell(f"{old.name} pins other packages than are installed, which it is run with: {'; '.join(pins)}")
    machine, played = Machine(), Played()
    why = _play(old, new, keep, played)
    figures = figures_of(played)
    text = page_of(
        figures, played.checks, failures_of(played.calls), machine.described(), old=old, new=new, pins=pins,
        slots=SLOTS, users=sum(map(sum, USERS.values())), resolvers=sum(map(len, USERS.values())),
        tokens=ANSWER_TOKENS, batch_lines=BATCH_LINES, wait_s=WAIT_S, used=USED,
    )  # fmt: skip
    if why or state != state_of(ROOT):
        click.echo(text)
        raise click.ClickException(why or "the working tree changed meanwhile: no page is written")
    page.write_text(text)
    click.echo(page)
    missed = [what for is_met, what in judged(figures, played.checks, old.name, new.name) if not is_met]
    if missed:
        raise click.ClickException("\n".join(["not met:", *missed]))


def _play(old: Release, new: Release, keep: Path | None, played: Played) -> str:
    """Play it; returns why it could not be played to its end. Exits after a signal."""
    reasons: list[str] = []
    is_interrupted = False
    try:
        is_interrupted = asyncio.run(ends_by_signal(_with_database(old, new, keep, played)))
    except* (DemoFailure, aiohttp.ClientError, OSError) as failures:
        reasons = [str(each) or type(each).__name__ for each in leaves(failures)]
    if is_interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
    return "\n".join(reasons)


async def _with_database(old: Release, new: Release, keep: Path | None, played: Played) -> None:
    server = Postgresql.made()  # a signal meanwhile is heard afterwards
    where = {"hosts": [str(server.address)], "database": DATABASE, "user": USER, "tls": False}
    try:
        with tempfile.TemporaryDirectory(prefix="nightside-upgrade-") as name:
            folder = Path(name) if keep is None else keep
            await play(old, new, folder, {"kind": "postgresql", "postgresql": where}, played)
    finally:
        server.end()


if __name__ == "__main__":
    main()
