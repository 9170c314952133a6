"""Client of a gateway's Files and Batch APIs, for `nightside batch`. It holds no file in memory and decides nothing."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import click
import msgspec

_CALL_S = 30.0
"""Seconds for one call without a file, and for a pause of a file's bytes."""
_ANSWER_BYTES_MAX = 16 << 20
_PIECE_BYTES = 256 * 1024


class BatchFault(click.ClickException):
    """The gateway refused the call. Exit code 1."""


class GatewayUnreachable(BatchFault):
    """No answer came, or one that says that the gateway cannot serve at present. Exit code 1."""


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
            return _decoded(await answer.content.read(_ANSWER_BYTES_MAX))

    async def upload(self, file: BinaryIO, name: str) -> dict[str, Any]:
        """Upload an input file, piece by piece. Raises BatchFault."""
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", file, filename=name, content_type="application/jsonl")
        timeout = aiohttp.ClientTimeout(sock_connect=_CALL_S)
        async with self._answer("POST", "/v1/files", data=form, timeout=timeout) as answer:
            return _decoded(await answer.content.read(_ANSWER_BYTES_MAX))

    async def download(self, file_id: str, out: BinaryIO) -> None:
        """Write a file's content, piece by piece. Raises BatchFault, and OSError where it cannot be written."""
        timeout = aiohttp.ClientTimeout(sock_connect=_CALL_S, sock_read=_CALL_S)
        async with self._answer("GET", f"/v1/files/{file_id}/content", timeout=timeout) as answer:
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                out.write(piece)

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **named: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, self._url + path, ssl=self._tls, **named) as answer:
                if answer.status >= 300:
                    fault = GatewayUnreachable if answer.status in (429, 502, 503, 504) else BatchFault
                    raise fault(f"{self._url}: {_told(answer.status, await answer.content.read(_ANSWER_BYTES_MAX))}")
                yield answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise GatewayUnreachable(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from error


@asynccontextmanager
async def batch_client(url: str, key: str | None, ca_file: Path | None) -> AsyncIterator[BatchClient]:
    tls: ssl.SSLContext | bool = True
    if ca_file is not None:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise click.BadParameter(f"{ca_file} cannot be read", param_hint="--ca-file") from error
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield BatchClient(url, session, tls)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BatchFault("the answer is no JSON object: is this the clients' address of a gateway?") from error


def _told(status: int, body: bytes) -> str:
    """Message of an error in OpenAI's form, with its code."""
    try:
        error = msgspec.json.decode(body, type=dict[str, Any])["error"]
        return f"{error['message']} ({error['code']})"
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the answer has status {status}"
