"""Command `nightside audit price`: what ran where, and what it cost. It changes no file."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.features.prices.audit import PricedRecord
from gateway.features.prices.file import read_prices
from gateway.records.audit import AuditLine, LostAuditLines
from gateway.records.audit_cli import DECODER, PLAIN_WIDTH, check_files, files_argument
from mesh.faults import ConfigError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@files_argument
@click.option("--prices", "prices_file", required=True, metavar="FILE", type=_FILE, help="Price by this prices file.")
@click.option("--json", "as_json", is_flag=True, help="Print a form for programs instead of a table.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a line for each tenant and region, for a spreadsheet.")
def price(files: tuple[Path, ...], *, prices_file: Path, as_json: bool, as_csv: bool) -> None:
    """Say what ran where and what it cost, by tenant and region, at the prices of a prices file.

    Each request counts once, in the files of the gateway that its client spoke to; a tenant is named only where the
    policy lets logs name it. Replica time is estimated: the time from asking a target to the end of its answer,
    divided by the list's requests_per_replica.

    Exit codes: 0 all was counted, 1 the files are broken or lines are missing, 2 a file cannot be read.
    """
    if as_json and as_csv:
        raise click.UsageError("--json does not go with --csv")
    try:
        record = PricedRecord(read_prices(prices_file))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    checked = check_files(files)
    missing = 0
    for path in dict.fromkeys(files):
        missing += _price_file(path, record)
    if as_json or as_csv:
        click.echo(record.as_csv() if as_csv else msgspec.json.encode(record.document()), nl=not as_csv)
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
        console.print(record.table())
        for remark in record.remarks():
            console.print(Text(remark))
    if missing or checked.broken:
        raise click.ClickException(
            f"{missing} lines are missing or unreadable, {len(checked.broken)} places are broken"
        )


def _price_file(path: Path, record: PricedRecord) -> int:
    """Price the lines of a file. Returns the number of lines that could not be counted."""
    missing = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                continue
            try:
                read = DECODER.decode(line)
            except msgspec.DecodeError:
                missing += 1
                continue
            if isinstance(read, AuditLine):
                record.take(read)
            elif isinstance(read, LostAuditLines):
                missing += read.lines
    return missing
