"""Client of the Kubernetes API that lists objects and watches their changes. It knows no engine and remembers nothing.

It is not a client library: it makes two calls of a stable protocol over the HTTP client that the gateway has anyway,
each call bounded, where a library would bring eight hundred modules of models. The API is not trusted: its answers are
bounded before they are held, and an answer that does not fit the question removes nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from gateway.config.targets import KubernetesApi
from mesh.whole_files import read_whole

_PAGE = 100
_PAGES_MAX = 50
_PAGE_BYTES_MAX = 16 << 20
_LIST_BYTES_MAX = 64 << 20
OBJECTS_MAX = _PAGE * _PAGES_MAX
_OBJECT_BYTES_MAX = 2 << 20
"""Largest object in bytes; clusters store at most 1.5 MiB for each."""
_PAGE_S = 15
_LIST_S = 60
_WATCH_S = 60
"""Seconds after which a watch ends and is begun anew where it ended, so that a connection that was cut silently is
noticed."""
_SILENT_S = 15
"""Seconds beyond `_WATCH_S` for the last event to arrive."""
_PART_PAUSE_S = 0.02
"""Seconds to pause after each piece of a watch, so that a server that sends without pause is read no faster than an
ordinary cluster, and leaves the event loop to requests."""
_PAUSE_SHARE = 4
"""Least pause as a multiple of the time that the piece took to process."""
_VERSION_LENGTH_MAX = 256
_CONTINUE_LENGTH_MAX = 4096
"""Both tokens are opaque, and are sent back in the URL of the next request."""
_REASON_MAX = 300

_Item = TypeVar("_Item")


class ApiFailed(Exception):
    """The API gave no usable answer; the message says why."""


class VersionExpired(Exception):
    """The known version is too old to watch changes from it; fetch the whole list."""


class Listed(Struct, Generic[_Item], frozen=True):
    items: list[_Item]
    version: str


class News(Struct, frozen=True):
    version: str
    """Version of the whole collection after this event."""
    item: dict[str, Any] | None = None
    """Object that was added, modified or deleted; None where only the version has changed."""
    is_gone: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    kind: str
    metadata: _Metadata
    items: list[msgspec.Raw] | None
    """Objects of the page; null where there are none."""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_PAGES = msgspec.json.Decoder(_Page)
_EVENTS = msgspec.json.Decoder(_Event)
_STATUSES = msgspec.json.Decoder(dict[str, Any])
_Read = TypeVar("_Read")


class Collection:
    """Objects of one kind, in one namespace, with certain labels."""

    def __init__(
        self,
        api: KubernetesApi,
        kind: str,
        path: str,
        selector: str,
        *,
        objects: msgspec.json.Decoder[dict[str, Any]],
        timeout_s: float,
    ) -> None:
        """Take the `kind` of each object, as the API names it, the decoder `objects` of the members that are used, and
        `timeout_s` to connect."""
        self._api = api
        self._decoder = objects
        self._kind = kind
        self._url = f"{api.url}{path}"
        self._selector = selector
        self._timeout_s = timeout_s

    async def whole(self, read: Callable[[dict[str, Any]], _Item]) -> Listed[_Item]:
        """List what `read` makes of each object; nothing else of an object is held. Raises ApiFailed, and Expired where
        the list changed too much while it was read."""
        try:
            async with asyncio.timeout(_LIST_S):
                return await self._whole(read)
        except TimeoutError as error:
            raise ApiFailed("the list was not whole in time") from error

    async def _whole(self, read: Callable[[dict[str, Any]], _Item]) -> Listed[_Item]:
        items: list[_Item] = []
        query = {"labelSelector": self._selector, "limit": str(_PAGE)}
        timeout = aiohttp.ClientTimeout(total=_PAGE_S, connect=self._timeout_s)
        size, tokens = 0, set[str]()
        for _ in range(_PAGES_MAX):
            async with self._asking(query, timeout) as response:
                text = await _body(response)
            size += len(text)
            page = _decoded(_PAGES, text)
            if page.kind != f"{self._kind}List":
                raise ApiFailed(f"what came is a {_shown(page.kind)}, and no {self._kind}List")
            found = page.items or []
            if len(items) + len(found) > OBJECTS_MAX or size > _LIST_BYTES_MAX:
                raise ApiFailed(
                    f"the list has more than {OBJECTS_MAX} objects or {_LIST_BYTES_MAX >> 20} MiB: narrow the selector"
                )
            for raw in found:
                items.append(read(self._object(raw)))
                await asyncio.sleep(0)
            if not page.metadata.continue_:
                return Listed(items, _version(page.metadata.resource_version))
            query["continue"] = _token_of_next(page.metadata.continue_, tokens)
        raise ApiFailed(f"the list has more than {_PAGES_MAX} pages: narrow the selector")

    async def changes(self, version: str) -> AsyncGenerator[list[News]]:
        """Yield the events after `version` as they arrive, in lists. Ends after about `_WATCH_S`. Raises ApiFailed and
        Expired."""
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=_WATCH_S + _SILENT_S, connect=self._timeout_s)
        loop = asyncio.get_running_loop()
        async with self._asking(query, timeout) as response:
            async for lines in _lines(response):
                began_s = loop.time()
                news: list[News] = []
                for line in lines:
                    news.append(self._news(line, version))
                    version = news[-1].version
                yield news
                await asyncio.sleep(max(_PART_PAUSE_S, _PAUSE_SHARE * (loop.time() - began_s)))

    def _news(self, line: bytes, version: str) -> News:
        event = _decoded(_EVENTS, line)
        if event.type == "ERROR":
            _raise_status(_decoded(_STATUSES, event.object))
        item = self._object(event.object)
        if item.get("kind", self._kind) != self._kind:
            raise ApiFailed(f"what came is a {_shown(str(item['kind']))}, and no {self._kind}")
        metadata = item.get("metadata")
        told = metadata.get("resourceVersion", version) if isinstance(metadata, dict) else version
        version = _version(told)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            return News(version, item, is_gone=event.type == "DELETED")
        return News(version)

    def _object(self, raw: msgspec.Raw) -> dict[str, Any]:
        if len(memoryview(raw)) > _OBJECT_BYTES_MAX:
            raise ApiFailed(f"an object is larger than {_OBJECT_BYTES_MAX >> 20} MiB")
        return _decoded(self._decoder, raw)

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
                aiohttp.ClientSession(
                    connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
                ) as session,
                session.get(self._url, params=query, headers=headers, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    _raise_status(await _status(response))
                if coding := response.headers.get("content-encoding", ""):
                    raise ApiFailed(f"the answer is compressed, although no encoding was requested: {_shown(coding)}")
                yield response
        except TimeoutError as error:
            raise ApiFailed("no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiFailed(_shown(f"{type(error).__name__}: {error}")) from error


def _credentials(api: KubernetesApi) -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Request headers and TLS context, read from files each time because clusters rotate both. Raises OSError and
    ValueError."""
    headers = {"accept": "application/json", "accept-encoding": "identity"}
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


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
    """Yield the lines that each piece completes; each byte is searched once however small the pieces are."""
    held = bytearray()
    async for part in response.content.iter_any():
        ended, newline, rest = part.rpartition(b"\n")
        if newline:
            held += ended
            lines = [line for line in held.split(b"\n") if line.strip()]
            held = bytearray(rest)
        else:
            held += rest
            lines = []
        if max(map(len, lines), default=0) > _OBJECT_BYTES_MAX or len(held) > _OBJECT_BYTES_MAX:
            raise ApiFailed(f"an object is larger than {_OBJECT_BYTES_MAX >> 20} MiB")
        yield list(map(bytes, lines))


async def _status(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Status object of a refusal; the HTTP status and reason alone where the body cannot be read."""
    try:
        told = _decoded(_STATUSES, await response.content.read(_REASON_MAX * 10))
    except ApiFailed:
        told = {}
    return {"message": response.reason or "", **told, "code": response.status}


def _raise_status(status: dict[str, Any]) -> None:
    if status.get("code") == 410:
        raise VersionExpired
    raise ApiFailed(_shown(f"{status.get('code')}: {status.get('message', '')}"))


def _shown(text: str) -> str:
    """Text of the API, shortened and with unprintable characters replaced: it comes from outside and is shown to
    people."""
    return "".join(each if each.isprintable() else "?" for each in text[:_REASON_MAX])


def _version(told: object) -> str:
    """Resource version to watch from. A watch without one would send every object anew, and an empty one is not
    accepted."""
    if not isinstance(told, str) or not 0 < len(told) <= _VERSION_LENGTH_MAX or not told.isprintable():
        raise ApiFailed("what came has no resourceVersion that can be used")
    return told


def _token_of_next(told: str, before: set[str]) -> str:
    if len(told) > _CONTINUE_LENGTH_MAX or not told.isprintable() or told in before:
        raise ApiFailed("the list goes on at no place that can be used, or at one where it has been")
    before.add(told)
    return told


def _decoded(decoder: msgspec.json.Decoder[_Read], text: bytes | msgspec.Raw) -> _Read:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiFailed(_shown(f"what came is not what was asked for, in JSON: {error}")) from error
