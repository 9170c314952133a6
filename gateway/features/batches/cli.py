"""`nightside batch`: hands files of requests to a gateway as its client, follows them, and writes their results."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, NoReturn
from urllib.parse import quote

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.features.batches.cli_options import Asks, as_json_option, asking, endpoint_in, first_line
from gateway.features.batches.client import BatchClient, BatchFault, GatewayBusy, GatewayUnreachable
from gateway.features.batches.state import ENDED, ENDPOINTS, WINDOW, BatchStatus
from mesh.lazy_group import LazyGroup

_LOOK_MIN_S = 1.0
_LOOK_MAX_S = 10.0
_UNREACHED_S = 60.0
"""Time without an answer after which following a batch ends."""


@click.group(cls=LazyGroup, targets={"plan": "gateway.features.batches.plan_cli:plan"})
def batch() -> None:
    """Send files of requests to a gateway, and fetch their results.

    Exit codes: 0 done, 1 it was refused, or the gateway cannot be asked.
    """


_batch_id = click.argument("batch_id", metavar="BATCH")


@batch.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@asking
@click.option(
    "--endpoint", type=click.Choice(ENDPOINTS), help="Set the API of all lines, instead of that of the first line."
)
@click.option("--watch", "is_watched", is_flag=True, help="Show the progress until the batch has ended.")
@as_json_option
def submit(asks: Asks, file: Path, endpoint: str | None, is_watched: bool, as_json: bool) -> None:
    """Send FILE, with a request a line, and print the id of its batch.

    Exit codes: 0 handed in, and with --watch every line succeeded, 1 not.
    """

    async def work(client: BatchClient) -> dict[str, Any]:
        with file.open("rb") as opened:
            order = {"endpoint": endpoint or endpoint_in(first_line(opened)), "completion_window": WINDOW}
            opened.seek(0)
            file_id = (await client.upload(opened, file.name))["id"]
        try:
            return await client.ask("POST", "/v1/batches", {**order, "input_file_id": file_id})
        except GatewayUnreachable as fault:  # the batch may exist
            raise GatewayUnreachable(f"{fault.message}\nThe file is at the gateway as {file_id}.") from fault
        except BatchFault:
            with suppress(BatchFault):
                await client.ask("DELETE", f"/v1/files/{file_id}")
            raise

    made = asks(work)
    if is_watched:
        if not as_json:
            click.echo(made["id"], err=True)
        _watch(asks, made["id"], as_json=as_json)
    click.echo(json.dumps(made, indent=2) if as_json else made["id"])


@batch.command()
@_batch_id
@asking
@as_json_option
def watch(asks: Asks, batch_id: str, as_json: bool) -> None:
    """Show the progress of BATCH until it has ended.

    Exit codes: 0 every line succeeded, 1 not, or the gateway has not answered for a minute.
    """
    _watch(asks, batch_id, as_json=as_json)


def _watch(asks: Asks, batch_id: str, *, as_json: bool) -> NoReturn:
    with _progress() as show:
        ended = asks(lambda client: _ended(client, batch_id, show))
    click.echo(json.dumps(ended, indent=2) if as_json else _sentence(ended))
    raise SystemExit(0 if _succeeded(ended) else 1)


async def _ended(client: BatchClient, batch_id: str, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Batch once it has ended. A gateway that is restarted meanwhile, or busy, is asked again."""
    now_s = asyncio.get_running_loop().time
    looks = LookSchedule(now_s())
    while True:
        try:
            found = await client.ask("GET", _path_of(batch_id))
        except GatewayBusy:
            looks.reached(now_s())
        except GatewayUnreachable:
            if looks.is_lost(now_s()):
                raise
        else:
            looks.reached(now_s())
            show(found)
            if found["status"] in ENDED:
                return found
        await asyncio.sleep(looks.next_wait_s())


class LookSchedule:
    """Pauses between looks at a batch, which grow, and the time after which an unreachable gateway is given up."""

    def __init__(self, now_s: float) -> None:
        self._reached_s = now_s
        self._wait_s = _LOOK_MIN_S

    def reached(self, now_s: float) -> None:
        self._reached_s = now_s

    def is_lost(self, now_s: float) -> bool:
        return now_s - self._reached_s >= _UNREACHED_S

    def next_wait_s(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(_LOOK_MAX_S, self._wait_s * 1.2)
        return wait_s


@contextmanager
def _progress() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows a batch on standard error: as a bar on a terminal, else by a line for each status."""
    console = Console(stderr=True, highlight=False)
    told = ""

    def by_lines(found: dict[str, Any]) -> None:
        nonlocal told
        if found["status"] != told:
            told = found["status"]
            console.print(_sentence(found), soft_wrap=True, markup=False)

    if not console.is_terminal:
        yield by_lines
        return
    status = TextColumn("{task.description}", markup=False)
    columns = (status, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        bar = shown.add_task("", total=None)

        def by_bar(found: dict[str, Any]) -> None:
            counts = found["request_counts"]
            done = counts["completed"] + counts["failed"]
            shown.update(bar, description=str(found["status"]), completed=done, total=counts["total"] or None)

        yield by_bar


def _sentence(found: dict[str, Any]) -> str:
    counts = found["request_counts"]
    faults = (found.get("errors") or {}).get("data") or []
    lines = f"{counts['completed']:,} of {counts['total']:,} lines succeeded, {counts['failed']:,} failed"
    told = [f"{found['id']} is {found['status']}: {lines}"]
    told += [f"line {each.get('line') or '-'}: {each['message']} ({each['code']})" for each in faults]
    return "\n".join(told)


def _succeeded(found: dict[str, Any]) -> bool:
    return found["status"] == BatchStatus.COMPLETED and not found["request_counts"]["failed"]


@batch.command()
@_batch_id
@asking
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file, not stdout."
)
@click.option("--errors", type=click.Path(path_type=Path, dir_okay=False), help="Write lines that failed to this file.")
def fetch(asks: Asks, batch_id: str, out: Path | None, errors: Path | None) -> None:
    """Write the results of BATCH, a line for each request that succeeded, once it has ended.

    Exit codes: 0 every line succeeded, 1 not, or the batch has not ended.
    """

    if out is not None and errors is not None and out.resolve() == errors.resolve():
        raise click.UsageError("--out and --errors name the same file")

    async def work(client: BatchClient) -> dict[str, Any]:
        found = await client.ask("GET", _path_of(batch_id))
        if found["status"] not in ENDED:
            raise BatchFault(f"{batch_id} is {found['status']}: results can be fetched once it has ended")
        if out is not None:
            await _write(client, found["output_file_id"], out)
        elif found["output_file_id"] is not None:
            await client.download(found["output_file_id"], sys.stdout.buffer)
        if errors is not None:
            await _write(client, found["error_file_id"], errors)
        return found

    ended = asks(work)
    click.echo(_sentence(ended), err=True)
    if ended["error_file_id"] is not None and errors is None:
        click.echo("--errors FILE writes the lines that failed", err=True)
    raise SystemExit(0 if _succeeded(ended) else 1)


async def _write(client: BatchClient, file_id: str | None, path: Path) -> None:
    """Write a file of results. It is empty where there is none: an older file would pass for this batch's."""
    with _replacement(path) as opened:
        if file_id is not None:
            await client.download(file_id, opened)


@contextmanager
def _replacement(path: Path) -> Iterator[IO[bytes]]:
    """File that only its owner can read, and that has its name once it is complete. Raises BatchFault."""
    if path.exists() and not path.is_file():
        raise BatchFault(f"{path} is no regular file")
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as fresh:
            try:
                yield fresh.file
                fresh.flush()
                Path(fresh.name).replace(path)
            except BaseException:
                Path(fresh.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise BatchFault(f"{path} cannot be written: {error.strerror}") from error


@batch.command()
@_batch_id
@asking
@as_json_option
def cancel(asks: Asks, batch_id: str, as_json: bool) -> None:
    """Stop BATCH: its lines that have not run never will.

    Exit codes: 0 it is being cancelled, 1 it has ended, or cannot be found.
    """
    found = asks(lambda client: client.ask("POST", f"{_path_of(batch_id)}/cancel"))
    click.echo(json.dumps(found, indent=2) if as_json else _sentence(found))


@batch.command(name="list")
@asking
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Limit the batches.")
@as_json_option
def list_batches(asks: Asks, limit: int, as_json: bool) -> None:
    """List the latest batches of the key's tenant."""
    found = asks(lambda client: client.ask("GET", f"/v1/batches?limit={limit}"))["data"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("Batch", "Status", "Model", "Created (UTC)"):
        table.add_column(header, overflow="fold", no_wrap=header in ("Batch", "Status"))
    for header in ("Lines", "Succeeded", "Failed"):
        table.add_column(header, justify="right")
    for each in found:
        created = time.strftime("%Y-%m-%d %H:%M", time.gmtime(each["created_at"]))
        counts = each["request_counts"]
        figures = (f"{counts[name]:,}" for name in ("total", "completed", "failed"))
        table.add_row(each["id"], each["status"], each["model"] or "", created, *figures)
    Console(highlight=False, markup=False).print(table)


def _path_of(batch_id: str) -> str:
    return f"/v1/batches/{quote(batch_id, safe='')}"
