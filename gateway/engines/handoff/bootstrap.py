"""Where a prefill worker and whoever decodes for it find each other, of connectors that start both at once: what their
discovery pages say. Pure: bytes in, values out, or BadProbe in words.

Verified against recorded contracts and our emulator, not run against the real engines.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from gateway.core.value import value
from gateway.core.vocabulary import Connector
from gateway.engines.exposition import BadProbe

PORT_DEFAULT = 8998
"""Of both Mooncake's and SGLang's bootstrap servers."""
_PORT_MAX = 65535
_ENGINE_ID_LENGTH_MAX = 256
_PAGE_BYTES_MAX = 1 << 20
"""Of Mooncake's page; SGLang's lists every argument that its engine was started with, which is less."""


@value
class Bootstrap:
    """A prefill worker's bootstrap server, as its decode workers have to be told of it."""

    host: str
    """As decode workers reach it."""
    port: int | None = PORT_DEFAULT
    """None: SGLang finds it out."""
    engine_id: str = ""
    """Mooncake: of the data-parallel rank that has the prefill."""
    ranks: int = 1
    rank: int | None = None
    """SGLang: the data-parallel rank of the prefill, where one is pinned."""

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def bootstrap_of(url: str, port: int = PORT_DEFAULT) -> Bootstrap:
    """At the host that an engine's URL names, which is where both engines start it."""
    host = urlsplit(url).hostname
    assert host is not None, "an engine's URL has a host"
    return Bootstrap(host, port)


QUERY_PATHS = {Connector.MOONCAKE: "/query", Connector.SGLANG: "/server_info"}
"""What is asked for what follows: Mooncake's at the bootstrap server itself, SGLang's at the engine."""


class _Rank(msgspec.Struct):
    engine_id: str


class _ServerInfo(msgspec.Struct):
    disaggregation_mode: str = "null"
    disaggregation_bootstrap_port: int | None = PORT_DEFAULT
    dp_size: int = 1


_RANKS = msgspec.json.Decoder(dict[str, _Rank])
_SERVER_INFO = msgspec.json.Decoder(_ServerInfo)


def read_query(page: bytes, ranks: int = 1) -> list[str]:
    """Mooncake: the engine ids of this many data-parallel ranks, in order. Raises BadProbe."""
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
    """SGLang: what a prefill worker says of its bootstrap server. Raises BadProbe."""
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
