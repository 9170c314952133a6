"""Asks a Kubernetes API for lists of objects and for what becomes of them. It knows no engine and remembers nothing.

Our own and not a client library: two calls of a stable protocol over the HTTP client that is here anyway, each bounded,
against eight hundred modules of models that a library brings along.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.config.targets import KubernetesApi
from gateway.ground.whole_files import read_whole

_PAGE = 100
_PAGES_MAX = 50
_PAGE_BYTES_MAX = 32 << 20
_EVENT_BYTES_MAX = 4 << 20
"""An object has 1.5 MiB at most where clusters keep it."""
_LIST_S = 15
"""A page of it."""
_WATCH_S = 60
"""After so long a watch is begun anew where it ended: what was cut off in silence is noticed by then."""
_SILENT_S = 15
"""On top of it, for the last word to arrive."""
_REASON_MAX = 300


class ApiFailed(Exception):
    """There was no answer to go by: why, in words."""


class Expired(Exception):
    """What we know is too old to be told the changes since: ask for the whole list."""


@dataclass(frozen=True, slots=True)
class Listed:
    items: list[dict[str, Any]]
    version: str


@dataclass(frozen=True, slots=True)
class News:
    version: str
    """Of everything, from here on."""
    item: dict[str, Any] | None = None
    """An object that is new, is another one or is gone; None where only the version is news."""
    is_gone: bool = False


class Collection:
    """Some objects of one kind, in one namespace, with certain labels."""

    def __init__(self, api: KubernetesApi, path: str, selector: str, timeout_s: float) -> None:
        """`timeout_s`: until connected."""
        self._api = api
        self._url = f"{api.url}{path}"
        self._selector = selector
        self._timeout_s = timeout_s

    async def whole(self) -> Listed:
        """All of them. Raises ApiFailed, and Expired where a list changed too much under way."""
        items: list[dict[str, Any]] = []
        query = {"labelSelector": self._selector, "limit": str(_PAGE)}
        timeout = aiohttp.ClientTimeout(total=_LIST_S, connect=self._timeout_s)
        for _ in range(_PAGES_MAX):
            async with self._asking(query, timeout) as response:
                page = _object(await _body(response))
            metadata = _part(page, "metadata", dict)
            items += (each for each in _part(page, "items", list) if isinstance(each, dict))
            rest = metadata.get("continue")
            if not rest:
                return Listed(items, str(metadata.get("resourceVersion", "")))
            query["continue"] = str(rest)
        raise ApiFailed(f"the list has more than {_PAGE * _PAGES_MAX} objects: narrow the selector")

    async def changes(self, version: str) -> AsyncIterator[News]:
        """What became of them since, as it happens. Ends after a while. Raises ApiFailed and Expired."""
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=_WATCH_S + _SILENT_S, connect=self._timeout_s)
        async with self._asking(query, timeout) as response:
            async for line in _lines(response):
                event = _object(line)
                kind, item = event.get("type"), _part(event, "object", dict)
                if kind == "ERROR":
                    _raise_status(item)
                version = str(_part(item, "metadata", dict).get("resourceVersion", version))
                if kind in ("ADDED", "MODIFIED", "DELETED"):
                    yield News(version, item, is_gone=kind == "DELETED")
                else:
                    yield News(version)

    @asynccontextmanager
    async def _asking(
        self,
        query: dict[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            headers, tls = await asyncio.to_thread(_credentials, self._api)
            connector = aiohttp.TCPConnector(ssl=tls, limit=1)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get(self._url, params=query, headers=headers, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    _raise_status(await _status(response))
                yield response
        except TimeoutError as error:
            raise ApiFailed("no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiFailed(f"{type(error).__name__}: {error}"[:_REASON_MAX]) from error


def _credentials(api: KubernetesApi) -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Read each time: clusters exchange both. Raises OSError and ValueError."""
    headers = {"accept": "application/json"}
    if api.token_file is not None:
        headers["authorization"] = f"Bearer {_token(api.token_file)}"
    if not api.url.startswith("https:"):
        return headers, True
    return headers, ssl.create_default_context(cafile=api.ca_file)


def _token(file: Path) -> str:
    token = read_whole(file).decode("utf-8").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError(f"{file} holds no usable token")
    return token


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _PAGE_BYTES_MAX:
            raise ApiFailed(f"a page of the list is larger than {_PAGE_BYTES_MAX >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    held = bytearray()
    async for part in response.content.iter_any():
        held += part
        *lines, rest = held.split(b"\n")
        for line in lines:
            if line.strip():
                yield bytes(line)
        held = rest
        if len(held) > _EVENT_BYTES_MAX:
            raise ApiFailed(f"an object is larger than {_EVENT_BYTES_MAX >> 20} MiB")


async def _status(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """What the API says of its refusal; its status alone where it says nothing that can be read."""
    try:
        told = _object(await response.content.read(_REASON_MAX * 10))
    except ApiFailed:
        told = {}
    return {"message": response.reason or "", **told, "code": response.status}


def _raise_status(status: dict[str, Any]) -> None:
    if status.get("code") == 410:
        raise Expired
    raise ApiFailed(f"{status.get('code')}: {status.get('message', '')}"[:_REASON_MAX])


def _object(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ApiFailed(f"what came is no object in JSON: {error}") from error


def _part(item: dict[str, Any], key: str, kind: type[Any]) -> Any:
    part = item.get(key)
    return part if isinstance(part, kind) else kind()
