"""Kills each kind of process of a mesh while it runs a batch: `make kills`.

Exit code 1 if a line was lost or another aim was missed, or if it could not be played; 69 if PostgreSQL or the emulator
of S3 is missing.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from loadgen.studies.commands import Machine, tell
from tests.cloud.buckets import new_bucket
from tests.cloud.dynamodb import NOBODY
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.cloud.programs import moto, why_missing
from tests.kills.figures import KilledBatch, judged, page_of
from tests.kills.playing import (
    ENGINES,
    FURTHER,
    HOME,
    KILLS_AT,
    LEASE_S,
    OUTSIDE,
    SLOTS,
    TOKENS,
    Stores,
    new_findings,
    play,
)
from tests.upgrade.commands import FILE, NEW_FOLDER, ROOT, TREE_CHANGED, checked, new_folder, played_to_end, write
from tests.upgrade.releases import Release, state_of, working_tree

PAGE = ROOT / "docs" / "results" / "batch_kills.md"


@click.command()
@click.option(
    "-o", "--output", type=FILE, default=PAGE, help=f"Write the page here; default: {PAGE.relative_to(ROOT)}."
)
@click.option("--keep", type=NEW_FOLDER, help="Keep the mesh's files and logs in this new folder.")
def main(output: Path, keep: Path | None) -> None:
    """Kill processes of a mesh while it runs a batch, and write the page."""
    keep = checked(output, keep)
    for what in ("pg_createcluster", "emulators"):
        if missing := why_missing(what):
            tell(missing)
            raise SystemExit(os.EX_UNAVAILABLE)
    os.environ.update(NOBODY)  # noqa: TID251 - for boto3, also the gateways'
    release, state, machine, played = working_tree(ROOT), state_of(ROOT), Machine(), new_findings()
    why = played_to_end(_with_stores(release, keep, played))
    aims = judged(played, len(KILLS_AT), FURTHER, LEASE_S)
    text = page_of(
        played, aims, machine.described(), commit=release.commit, home=HOME, further=FURTHER, outside=OUTSIDE,
        engines=ENGINES, slots=SLOTS, tokens=TOKENS, lease_s=LEASE_S,
    )  # fmt: skip
    missed = [what for is_met, what in aims if not is_met]
    write(output, text, missed, why or ("" if state == state_of(ROOT) else TREE_CHANGED))


async def _with_stores(release: Release, keep: Path | None, played: KilledBatch) -> None:
    server = Postgresql.made()  # a signal meanwhile is heard afterwards
    try:
        with new_folder(keep) as folder:
            emulator = moto(folder)
            try:
                emulator.begin()
                store = {"hosts": [str(server.address)], "database": DATABASE, "user": USER, "tls": False}
                s3 = {"bucket": new_bucket(emulator), "prefix": "night/", "endpoint": emulator.url}
                await play(release, folder, Stores(server, store, s3), played)
            finally:
                emulator.kill()
    finally:
        server.end()


if __name__ == "__main__":
    main()
