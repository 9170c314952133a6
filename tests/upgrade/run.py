"""Upgrades a mesh of processes from an earlier version to this tree and back, under load: `make upgrade`.

Exit code 1 if a request failed or another aim was missed, or if it could not be played.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import aiohttp
import click

from loadgen.demo.processes import DemoFailure
from loadgen.interrupts import leaves
from loadgen.studies.commands import Machine, tell
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.cloud.programs import why_missing
from tests.upgrade.figures import failures_of, figures_of, judged, page_of
from tests.upgrade.mesh import SLOTS
from tests.upgrade.playing import ANSWER_TOKENS, BATCH_LINES, USERS, WAIT_S, Played, play
from tests.upgrade.releases import LOCK, NoRelease, Release, newest_tag, other_pins, unpacked, working_tree

ROOT = Path(__file__).parents[2]


@click.command()
@click.option("--from", "ref", metavar="REF", help="Upgrade from this version; default: the newest tag v*.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default="docs/results/upgrade.md")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep the mesh's files and logs here.")
def main(ref: str | None, output: Path, keep: Path | None) -> None:
    """Upgrade a mesh to this tree and back under load, and write the page."""
    trees = ROOT / "build" / "upgrade"
    trees.mkdir(parents=True, exist_ok=True)
    try:
        old, new = unpacked(ROOT, ref or newest_tag(ROOT), trees), working_tree(ROOT)
        if missing := why_missing("pg_createcluster"):
            raise click.ClickException(f"the controllers share a PostgreSQL database: {missing}")
        pins = other_pins((old.tree / LOCK).read_text(), (new.tree / LOCK).read_text())
        if pins:
            tell(f"{old.name} pins other packages than are installed, which it is run with: {'; '.join(pins)}")
        machine = Machine()
        played = _played(old, new, keep)
    except (NoRelease, DemoFailure) as error:
        raise click.ClickException(str(error)) from error
    steps = figures_of(played.steps, played.ended_ns, played.calls, played.rejected_ns, old.name)
    page = page_of(
        steps, played.checks, failures_of(played.calls), machine.described(), old=old, new=new, pins=pins,
        slots=SLOTS, users=sum(map(sum, USERS.values())), resolvers=sum(map(len, USERS.values())),
        tokens=ANSWER_TOKENS, batch_lines=BATCH_LINES, wait_s=WAIT_S,
    )  # fmt: skip
    output.write_text(page)
    missed = [what for is_met, what in judged(steps, played.checks) if not is_met]
    click.echo(output)
    if missed:
        raise click.ClickException("\n".join(["not met:", *missed]))


def _played(old: Release, new: Release, keep: Path | None) -> Played:
    server = Postgresql.made()
    where = {"hosts": [str(server.address)], "database": DATABASE, "user": USER, "tls": False}
    store = {"kind": "postgresql", "postgresql": where}
    try:
        with tempfile.TemporaryDirectory(prefix="nightside-upgrade-") as name:
            folder = Path(name) if keep is None else keep.resolve()
            folder.mkdir(parents=True, exist_ok=True)
            return asyncio.run(play(old, new, folder, store, tell))
    except* (DemoFailure, aiohttp.ClientError, OSError) as failures:
        reasons = [str(each) for each in leaves(failures)]
    finally:
        server.end()
    raise DemoFailure("\n".join(reasons))


if __name__ == "__main__":
    main()
