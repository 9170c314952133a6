"""Asks a Kubernetes API for lists of objects and for what becomes of them. It knows no engine and remembers nothing.

Our own and not a client library: two calls of a stable protocol over the HTTP client that is here anyway, each bounded,
against eight hundred modules of models that a library brings along. An API may lie: whatever it sends is bounded before
it is held, and what is no answer to the question takes nothing away.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from gateway.config.targets import KubernetesApi
from gateway.ground.whole_files import read_whole

_PAGE = 100
_PAGES_MAX = 50
_PAGE_BYTES_MAX = 16 << 20
_LIST_BYTES_MAX = 64 << 20
OBJECTS_MAX = _PAGE * _PAGES_MAX
_OBJECT_BYTES_MAX = 2 << 20
"""An object has 1.5 MiB at most where clusters keep it."""
_PAGE_S = 15
_LIST_S = 60
_WATCH_S = 60
"""After so long a watch is begun anew where it ended: what was cut off in silence is noticed by then."""
_SILENT_S = 15
"""On top of it, for the last word to arrive."""
_PART_PAUSE_S = 0.02
"""After each piece of a watch: whoever sends without a pause is read at the pace of an ordinary cluster, and leaves the
loop to requests."""
_PAUSE_SHARE = 4
"""Or so many times as long as that piece took to take in."""
_VERSION_LENGTH_MAX = 256
_CONTINUE_LENGTH_MAX = 4096
"""Both are opaque, and are sent back in the address of the next question."""
_REASON_MAX = 300

_Item = TypeVar("_Item")


class ApiFailed(Exception):
    """There was no answer to go by: why, in words."""


class Expired(Exception):
    """What we know is too old to be told the changes since: ask for the whole list."""


@dataclass(frozen=True, slots=True)
class Listed(Generic[_Item]):
    items: list[_Item]
    version: str


@dataclass(frozen=True, slots=True)
class News:
    version: str
    """Of everything, from here on."""
    item: dict[str, Any] | None = None
    """An object that is new, is another one or is gone; None where only the version is news."""
    is_gone: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    kind: str
    metadata: _Metadata
    items: list[msgspec.Raw] | None
    """Null where there are none."""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_PAGES = msgspec.json.Decoder(_Page)
_EVENTS = msgspec.json.Decoder(_Event)
_STATUSES = msgspec.json.Decoder(dict[str, Any])
_Read = TypeVar("_Read")


class Collection:
    """Some objects of one kind, in one namespace, with certain labels."""

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
        """`kind`: of each object, in the API's words. `objects` decodes as much of one as is looked at. `timeout_s`:
        until connected."""
        self._api = api
        self._decoder = objects
        self._kind = kind
        self._url = f"{api.url}{path}"
        self._selector = selector
        self._timeout_s = timeout_s

    async def whole(self, read: Callable[[dict[str, Any]], _Item]) -> Listed[_Item]:
        """What `read` makes of each of them; nothing else of an object is held. Raises ApiFailed, and Expired where a
        list changed too much under way."""
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
        """What became of them since, as it happens, in pieces as it arrives. Ends after a while. Raises ApiFailed and
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
                    raise ApiFailed(f"the answer is packed, which nobody asked for: {_shown(coding)}")
                yield response
        except TimeoutError as error:
            raise ApiFailed("no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiFailed(_shown(f"{type(error).__name__}: {error}")) from error


def _credentials(api: KubernetesApi) -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Read each time: clusters exchange both. Raises OSError and ValueError."""
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
    """The lines that each piece ends, each looked through once however small the pieces are."""
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
    """What the API says of its refusal; its status alone where it says nothing that can be read."""
    try:
        told = _decoded(_STATUSES, await response.content.read(_REASON_MAX * 10))
    except ApiFailed:
        told = {}
    return {"message": response.reason or "", **told, "code": response.status}


def _raise_status(status: dict[str, Any]) -> None:
    if status.get("code") == 410:
        raise Expired
    raise ApiFailed(_shown(f"{status.get('code')}: {status.get('message', '')}"))


def _shown(text: str) -> str:
    """As it may be shown to people: what the API says is a stranger's."""
    return "".join(each if each.isprintable() else "?" for each in text[:_REASON_MAX])


def _version(told: object) -> str:
    """Where to go on. Without one, a watch would tell of everything anew; an empty one is no place to go on from."""
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
