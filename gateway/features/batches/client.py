"""Client of a gateway's Files and Batch APIs, for `nightside batch`. It holds no file in memory and decides nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, BinaryIO

import aiohttp
import click
import msgspec

from mesh.bodies import read_body

_CALL_S = 30.0
"""Seconds for one call without a file, and for a pause of a file's bytes."""
_UPLOAD_PAUSE_S = 120.0
"""Seconds in which the gateway takes no byte of an upload, or gives no answer behind the last one."""
_ANSWER_BYTES_MAX = 16 << 20
_PIECE_BYTES = 256 * 1024


class BatchFault(click.ClickException):
    """The gateway refused the call. Exit code 1."""


class GatewayUnreachable(BatchFault):
    """No answer came, or one that says that the gateway cannot serve at present. Exit code 1."""


class GatewayBusy(BatchFault):
    """The gateway refused the call for its rate: the same call may succeed later. Exit code 1."""


class BatchClient:
    """Calls to one gateway with one API key."""

    def __init__(self, url: str, session: aiohttp.ClientSession, tls: ssl.SSLContext | bool) -> None:
        self._url = url.rstrip("/")
        self._session = session
        self._tls = tls

    async def ask(self, method: str, path: str, body: object | None = None) -> dict[str, Any]:
        """Make a call with a body of JSON. Raises BatchFault."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=_CALL_S)
        async with self._answer(method, path, data=data, headers=headers, timeout=timeout) as answer:
            return _decoded(await read_body(answer, _ANSWER_BYTES_MAX))

    async def upload(self, file: BinaryIO, name: str) -> dict[str, Any]:
        """Upload an input file, piece by piece. Raises BatchFault."""
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", file, filename=name, content_type="application/jsonl")
        timeout = aiohttp.ClientTimeout(sock_connect=_CALL_S)
        async with self._answer("POST", "/v1/files", _UPLOAD_PAUSE_S, data=form, timeout=timeout) as answer:
            return _decoded(await read_body(answer, _ANSWER_BYTES_MAX))

    async def download(self, file_id: str, out: IO[bytes]) -> None:
        """Write a file's content, piece by piece. Raises BatchFault, and OSError where it cannot be written."""
        timeout = aiohttp.ClientTimeout(sock_connect=_CALL_S, sock_read=_CALL_S)
        async with self._answer("GET", f"/v1/files/{file_id}/content", timeout=timeout) as answer:
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                out.write(piece)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, pause_s: float | None = None, **named: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Answer to a call. `pause_s` bounds the time behind each piece of the body that is sent. A redirect is not
        followed: the file and the key are for this gateway."""
        try:
            async with (
                asyncio.timeout(pause_s) as limit,
                self._session.request(
                    method, self._url + path, ssl=self._tls, allow_redirects=False, trace_request_ctx=limit, **named
                ) as answer,
            ):
                if answer.status >= 300:
                    told = _told(answer.status, await read_body(answer, _ANSWER_BYTES_MAX))
                    raise _FAULTS.get(answer.status, BatchFault)(f"{self._url}: {told}")
                yield answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise GatewayUnreachable(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from error


_FAULTS: dict[int, type[BatchFault]] = {
    429: GatewayBusy,
    502: GatewayUnreachable,
    503: GatewayUnreachable,
    504: GatewayUnreachable,
}


async def _move_limit(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    """Move the limit of an upload, since a piece of it was taken."""
    limit: asyncio.Timeout = context.trace_request_ctx
    if limit.when() is not None:
        limit.reschedule(asyncio.get_running_loop().time() + _UPLOAD_PAUSE_S)


@asynccontextmanager
async def batch_client(url: str, key: str | None, ca_file: Path | None) -> AsyncIterator[BatchClient]:
    tls: ssl.SSLContext | bool = True
    if ca_file is not None:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise click.BadParameter(f"{ca_file} cannot be read", param_hint="--ca-file") from error
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    sending = aiohttp.TraceConfig()
    sending.on_request_chunk_sent.append(_move_limit)
    async with aiohttp.ClientSession(headers=headers, trace_configs=[sending]) as session:
        yield BatchClient(url, session, tls)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatchFault("the answer is no JSON object: is this the clients' address of a gateway?") from error


def _told(status: int, body: bytes) -> str:
    """Message of an error in OpenAI's form, with its code."""
    try:
        error = msgspec.json.decode(body, type=dict[str, Any])["error"]
        return f"{error['message']} ({error['code']})"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return f"the answer has status {status}"
