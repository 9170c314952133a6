"""Reads the discovery pages by which a prefill worker and its decode worker find each other, for connectors that start
both at once. Pure: bytes in, values out, or BadProbe with the reason.

Verified against recorded contracts and our emulator, not run against the real engines.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.core.vocabulary import Connector
from gateway.engines.exposition import BadProbe

PORT_DEFAULT = 8998
"""Default port of both Mooncake's and SGLang's bootstrap servers."""
_PORT_MAX = 65535
_ENGINE_ID_LENGTH_MAX = 256
_PAGE_BYTES_MAX = 1 << 20
"""Size limit of Mooncake's page. SGLang's, which lists every argument of its engine, is smaller."""


class Bootstrap(Struct, frozen=True):
    """A prefill worker's bootstrap server, as its decode workers have to be told of it."""

    host: str
    """Host as decode workers reach it."""
    port: int | None = PORT_DEFAULT
    """Port; None lets SGLang find it."""
    engine_id: str = ""
    """Id of the data-parallel rank that has the prefill (Mooncake)."""
    ranks: int = 1
    rank: int | None = None
    """Data-parallel rank of the prefill, where one is pinned (SGLang)."""

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def bootstrap_of(url: str, port: int = PORT_DEFAULT) -> Bootstrap:
    """Bootstrap at the host of the engine's URL, where both kinds of engine start it."""
    host = urlsplit(url).hostname
    assert host is not None, "an engine's URL has a host"
    return Bootstrap(host, port)


QUERY_PATHS = {Connector.MOONCAKE: "/query", Connector.SGLANG: "/server_info"}
"""Path to ask: Mooncake's at the bootstrap server itself, SGLang's at the engine."""


class _Rank(msgspec.Struct):
    engine_id: str


class _ServerInfo(msgspec.Struct):
    disaggregation_mode: str = "null"
    disaggregation_bootstrap_port: int | None = PORT_DEFAULT
    dp_size: int = 1


_RANKS = msgspec.json.Decoder(dict[str, _Rank])
_SERVER_INFO = msgspec.json.Decoder(_ServerInfo)


def read_query(page: bytes, ranks: int = 1) -> list[str]:
    """Read Mooncake's page: the engine ids of this many data-parallel ranks, in order. Raises BadProbe."""
    if len(page) > _PAGE_BYTES_MAX:
        raise BadProbe("the bootstrap server's page is too large")
    try:
        told = _RANKS.decode(page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadProbe(f"the bootstrap server's page cannot be read: {error}") from error
    if set(told) != {str(rank) for rank in range(ranks)}:
        raise BadProbe(f"the bootstrap server tells of {len(told)} ranks, and {ranks} are configured")
    ids = [told[str(rank)].engine_id for rank in range(ranks)]
    if not all(0 < len(each) <= _ENGINE_ID_LENGTH_MAX and each.isprintable() for each in ids):
        raise BadProbe(f"an engine id is not 1 to {_ENGINE_ID_LENGTH_MAX} printable characters")
    return ids


def read_server_info(page: bytes, before: Bootstrap) -> Bootstrap:
    """Read SGLang's page: the prefill worker's port and number of ranks. Raises BadProbe."""
    if len(page) > _PAGE_BYTES_MAX:
        raise BadProbe("the engine's page of its arguments is too large")
    try:
        told = _SERVER_INFO.decode(page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadProbe(f"the engine's page of its arguments cannot be read: {error}") from error
    if told.disaggregation_mode != "prefill":
        raise BadProbe(f"the engine is no prefill worker: its disaggregation mode is {told.disaggregation_mode[:32]}")
    port = told.disaggregation_bootstrap_port
    if port is not None and not 0 < port <= _PORT_MAX:
        raise BadProbe("the bootstrap port is no port")
    if told.dp_size < 1:
        raise BadProbe("the engine has no data-parallel rank")
    return replace(before, port=port, ranks=told.dp_size)
