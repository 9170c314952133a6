"""`nightside batch`: hands files of requests to a gateway as its client, follows them, and writes their results."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from urllib.parse import quote

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.features.batches.client import BatchClient, BatchFault, GatewayUnreachable, batch_client
from gateway.features.batches.state import ENDED, ENDPOINTS, WINDOW, BatchStatus
from mesh.admin_client import secret_in
from mesh.environment import PROCESS_ENVIRONMENT

KEY_VARIABLE = "NIGHTSIDE_API_KEY"
_LOOK_EVERY_S = 1.0
_UNREACHED_MAX = 60
"""Looks in a row without an answer after which following a batch ends."""
_LINE_BYTES_MAX = 16 << 20
_Work = Callable[[BatchClient], Awaitable[Any]]
_Asks = Callable[[_Work], Any]


@click.group()
def batch() -> None:
    """Send files of requests to a gateway, and fetch their results.

    Exit codes: 0 done, 1 it was refused, or the gateway cannot be asked.
    """


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a client, and the argument `asks`, which runs work with a client."""

    @click.option(
        "--url",
        default="http://127.0.0.1:8080",
        show_default=True,
        metavar="URL",
        help="Set the URL of the gateway's address for clients.",
    )
    @click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        help=f"Read the API key from this file, instead of from {KEY_VARIABLE}.",
    )
    @click.option(
        "--ca-file",
        type=click.Path(path_type=Path),
        help="Verify an https address by this file of CA certificates (PEM).",
    )
    @wraps(command)
    def with_client(*, url: str, key_file: Path | None, ca_file: Path | None, **others: Any) -> None:
        key = secret_in(key_file, "--key-file", PROCESS_ENVIRONMENT, KEY_VARIABLE)

        async def asked(work: _Work) -> Any:
            async with batch_client(url, key, ca_file) as client:
                return await work(client)

        command(lambda work: asyncio.run(asked(work)), **others)

    return with_client


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_batch_id = click.argument("batch_id", metavar="BATCH")


@batch.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@_asking
@click.option(
    "--endpoint", type=click.Choice(ENDPOINTS), help="Set the API of all lines, instead of that of the first line."
)
@click.option("--watch", "is_watched", is_flag=True, help="Show the progress until the batch has ended.")
@_as_json
def submit(asks: _Asks, file: Path, endpoint: str | None, is_watched: bool, as_json: bool) -> None:
    """Send FILE, with a request a line, and print the id of its batch.

    Exit codes: 0 handed in, and with --watch every line succeeded, 1 not.
    """

    async def work(client: BatchClient) -> dict[str, Any]:
        with file.open("rb") as opened:
            order = {"endpoint": endpoint or _endpoint_in(opened), "completion_window": WINDOW}
            opened.seek(0)
            uploaded = await client.upload(opened, file.name)
        return await client.ask("POST", "/v1/batches", {**order, "input_file_id": uploaded["id"]})

    made = asks(work)
    if is_watched:
        if not as_json:
            click.echo(made["id"], err=True)
        _watch(asks, made["id"], as_json=as_json)
    click.echo(json.dumps(made, indent=2) if as_json else made["id"])


def _endpoint_in(file: BinaryIO) -> str:
    """API of the first line."""
    line = file.readline(_LINE_BYTES_MAX)
    try:
        url = msgspec.json.decode(line, type=dict[str, Any])["url"]
    except (msgspec.DecodeError, KeyError) as error:
        raise click.UsageError("the first line of FILE has no `url`: name the API by --endpoint") from error
    if url not in ENDPOINTS:
        raise click.UsageError(f"the `url` of the first line is none of {', '.join(ENDPOINTS)}")
    return str(url)


@batch.command()
@_batch_id
@_asking
@_as_json
def watch(asks: _Asks, batch_id: str, as_json: bool) -> None:
    """Show the progress of BATCH until it has ended.

    Exit codes: 0 every line succeeded, 1 not, or the gateway has not answered for a minute.
    """
    _watch(asks, batch_id, as_json=as_json)


def _watch(asks: _Asks, batch_id: str, *, as_json: bool) -> NoReturn:
    with _progress() as show:
        ended = asks(lambda client: _ended(client, batch_id, show))
    click.echo(json.dumps(ended, indent=2) if as_json else _sentence(ended))
    raise SystemExit(0 if _succeeded(ended) else 1)


async def _ended(client: BatchClient, batch_id: str, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Batch once it has ended. A gateway that is restarted meanwhile is asked again."""
    unreached = 0
    while True:
        try:
            found = await client.ask("GET", _path_of(batch_id))
        except GatewayUnreachable:
            unreached += 1
            if unreached >= _UNREACHED_MAX:
                raise
        else:
            unreached = 0
            show(found)
            if found["status"] in ENDED:
                return found
        await asyncio.sleep(_LOOK_EVERY_S)


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
@_asking
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file, not stdout."
)
@click.option("--errors", type=click.Path(path_type=Path, dir_okay=False), help="Write lines that failed to this file.")
def fetch(asks: _Asks, batch_id: str, out: Path | None, errors: Path | None) -> None:
    """Write the results of BATCH, a line for each request that succeeded, once it has ended.

    Exit codes: 0 every line succeeded, 1 not, or the batch has not ended.
    """

    async def work(client: BatchClient) -> dict[str, Any]:
        found = await client.ask("GET", _path_of(batch_id))
        if found["status"] not in ENDED:
            raise BatchFault(f"{batch_id} is {found['status']}: results can be fetched once it has ended")
        for file_id, path in ((found["output_file_id"], out), (found["error_file_id"], errors)):
            if file_id is not None and (path is not None or file_id == found["output_file_id"]):
                await _download(client, file_id, path)
        return found

    ended = asks(work)
    click.echo(_sentence(ended), err=True)
    if ended["error_file_id"] is not None and errors is None:
        click.echo("--errors FILE writes the lines that failed", err=True)
    raise SystemExit(0 if _succeeded(ended) else 1)


async def _download(client: BatchClient, file_id: str, path: Path | None) -> None:
    """Write a file; it has its name once it is complete. None: standard output."""
    if path is None:
        await client.download(file_id, sys.stdout.buffer)
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as opened:
            await client.download(file_id, opened)
        part.replace(path)
    except OSError as error:
        raise BatchFault(f"{path} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@batch.command()
@_batch_id
@_asking
@_as_json
def cancel(asks: _Asks, batch_id: str, as_json: bool) -> None:
    """Stop BATCH: its lines that have not run never will.

    Exit codes: 0 it is being cancelled, 1 it has ended, or cannot be found.
    """
    found = asks(lambda client: client.ask("POST", f"{_path_of(batch_id)}/cancel"))
    click.echo(json.dumps(found, indent=2) if as_json else _sentence(found))


@batch.command(name="list")
@_asking
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Limit the batches.")
@_as_json
def list_batches(asks: _Asks, limit: int, as_json: bool) -> None:
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
