"""Options and arguments that commands of `nightside batch` share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from gateway.features.batches.client import BatchClient, batch_client
from gateway.features.batches.state import ENDPOINTS
from mesh.admin_client import secret_in
from mesh.environment import PROCESS_ENVIRONMENT

KEY_VARIABLE = "NIGHTSIDE_API_KEY"
_LINE_BYTES_MAX = 16 << 20
Work = Callable[[BatchClient], Awaitable[Any]]
Asks = Callable[[Work], Any]


def asking(command: Callable[..., None]) -> Callable[..., None]:
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

        async def asked(work: Work) -> Any:
            async with batch_client(url, key, ca_file) as client:
                return await work(client)

        command(lambda work: asyncio.run(asked(work)), **others)

    return with_client


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def endpoint_in(line: dict[str, Any]) -> str:
    """API of the first line of a file."""
    url = line.get("url")
    if url is None:
        raise click.UsageError("the first line of FILE has no `url`: name the API by --endpoint")
    if url not in ENDPOINTS:
        raise click.UsageError(f"the `url` of the first line is none of {', '.join(ENDPOINTS)}")
    return str(url)


def model_in(line: dict[str, Any]) -> str:
    """Model of the first line of a file; empty if it names none."""
    body = line.get("body")
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else ""


def first_line(file: BinaryIO) -> dict[str, Any]:
    """First line that is not blank; empty if it is no object."""
    while (line := file.readline(_LINE_BYTES_MAX)) and not line.strip():
        pass
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
