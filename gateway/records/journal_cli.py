"""Command `nightside replay`: replays a journal and reports whether this code makes the same decisions. It changes no
file."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from msgspec import to_builtins

from gateway.records.journal import replay as replay_journal
from mesh.journal import JournalUnreadable
from mesh.journal_lines import report_as_text
from mesh.runs import files_of_one_run

EXIT_DIVERGED = 1
EXIT_UNREADABLE = 2


@click.command("replay")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--run", metavar="NAME", help="Of a folder's runs, instead of the newest that is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def replay(files: tuple[Path, ...], *, run: str | None, as_json: bool) -> None:
    """Replay a gateway's journal, and compare every effect: all FILES of a run in any order, or one run of a folder.

    Exit codes: 0 every decision is the same, 1 one diverged, 2 the journal cannot be read.
    """
    try:
        report = replay_journal(files_of_one_run(files, run))
    except JournalUnreadable as error:
        click.echo(_as_json({"unreadable": str(error)}) if as_json else f"unreadable: {error}", err=not as_json)
        raise SystemExit(EXIT_UNREADABLE) from error
    click.echo(_as_json(to_builtins(report)) if as_json else report_as_text(report))
    if report.divergence is not None:
        raise SystemExit(EXIT_DIVERGED)


def _as_json(document: dict[str, object]) -> str:
    return msgspec.json.encode(document).decode()
