"""Upgrades a mesh of processes from an earlier version to this tree and back, under load: `make upgrade`.

Exit code 1 if a request failed or another aim was missed, or if it could not be played; 69 if there is no version to
upgrade from.
"""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.studies.commands import Machine, tell
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.cloud.programs import why_missing
from tests.upgrade.commands import FILE, NEW_FOLDER, ROOT, TREE_CHANGED, checked, new_folder, played_to_end, write
from tests.upgrade.figures import Played, failures_of, figures_of, judged, page_of
from tests.upgrade.playing import ANSWER_TOKENS, BATCH_LINES, SLOTS, USED, USERS, WAIT_S, play
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

PAGE = ROOT / "docs" / "results" / "upgrade.md"


@click.command()
@click.option("--from", "ref", metavar="REF", help="Upgrade from this version; default: the newest tag v*.")
@click.option("-o", "--output", type=FILE, help=f"Write here; default: {PAGE.relative_to(ROOT)} for a tag.")
@click.option("--keep", type=NEW_FOLDER, help="Keep the mesh's files and logs in this new folder.")
def main(ref: str | None, output: Path | None, keep: Path | None) -> None:
    """Upgrade a mesh to this tree and back under load, and write the page."""
    trees = ROOT / "build" / "upgrade"
    trees.mkdir(parents=True, exist_ok=True)
    ref = ref or newest_tag(ROOT)
    page = output or (PAGE if is_tag(ROOT, ref) else trees / "upgrade.md")
    keep = checked(page, keep)
    old, new, state = unpacked(ROOT, ref, trees), working_tree(ROOT), state_of(ROOT)
    if missing := why_missing("pg_createcluster"):
        raise click.ClickException(f"the controllers share a PostgreSQL database: {missing}")
    pins = other_pins((old.tree / LOCK).read_text(), (new.tree / LOCK).read_text())
    if pins:
        tell(f"{old.name} pins other packages than are installed, which it is run with: {'; '.join(pins)}")
    machine, played = Machine(), Played()
    why = played_to_end(_with_database(old, new, keep, played))
    figures = figures_of(played)
    text = page_of(
        figures, played.checks, failures_of(played.calls), machine.described(), old=old, new=new, pins=pins,
        slots=SLOTS, users=sum(map(sum, USERS.values())), resolvers=sum(map(len, USERS.values())),
        tokens=ANSWER_TOKENS, batch_lines=BATCH_LINES, wait_s=WAIT_S, used=USED,
    )  # fmt: skip
    missed = [what for is_met, what in judged(figures, played.checks, old.name, new.name) if not is_met]
    write(page, text, missed, why or ("" if state == state_of(ROOT) else TREE_CHANGED))


async def _with_database(old: Release, new: Release, keep: Path | None, played: Played) -> None:
    server = Postgresql.made()  # a signal meanwhile is heard afterwards
    where = {"hosts": [str(server.address)], "database": DATABASE, "user": USER, "tls": False}
    try:
        with new_folder(keep) as folder:
            await play(old, new, folder, {"kind": "postgresql", "postgresql": where}, played)
    finally:
        server.end()


if __name__ == "__main__":
    main()
