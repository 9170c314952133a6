from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.vocabulary import Connector, ReplicaId
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.handoff.bootstrap import Bootstrap
from gateway.engines.tls import TlsContexts
from tests.support.core import EU, replica_spec

URL = "http://127.0.0.1:1"


def config(name: str, url: str = URL, ranks: int = 1) -> ReplicaConfig:
    return ReplicaConfig(replica_spec(name, EU), url, Dialect.VLLM, "secret", ranks=ranks)


def endpoint(name: str, url: str = URL) -> ReplicaEndpoint:
    return ReplicaEndpoint.from_config(config(name, url), TlsContexts())


def test_an_endpoint_is_where_its_replica_is() -> None:
    made = endpoint("a")
    assert (made.replica_id, made.place, made.dialect) == ("a", EU, Dialect.VLLM)
    assert made.own_headers == {"accept-encoding": "identity", "authorization": "Bearer secret"}


def test_the_key_is_sent_and_never_shown() -> None:
    assert endpoint("a").engine.authorization() == {"authorization": "Bearer secret"}
    assert "secret" not in repr(endpoint("a"))
    assert "secret" not in repr(endpoint("a").engine)


def test_ranks_are_replicas_of_one_engine() -> None:
    ranks = [ReplicaEndpoint.from_config(each, TlsContexts()) for each in config("a", ranks=2).by_rank()]
    assert [each.replica_id for each in ranks] == ["a@0", "a@1"]
    assert [each.own_headers["x-data-parallel-rank"] for each in ranks] == ["0", "1"]
    endpoints = ReplicaEndpoints([*ranks, endpoint("b", "http://127.0.0.1:2")])
    first, second = endpoints.engines()
    assert (first.url, first.ranks) == (URL, 2)
    assert endpoints.of(first) == ranks
    assert [each.replica_id for each in endpoints.of(second)] == ["b"]


async def test_replacing_wakes_everyone_who_follows() -> None:
    endpoints = ReplicaEndpoints([endpoint("a")])
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(endpoints.until_replaced())
        await asyncio.sleep(0)
        endpoints.replace([endpoint("b", "http://127.0.0.1:2")])
    assert endpoints.ids() == ["b"]
    assert endpoints.get(ReplicaId("a")) is None
    assert endpoints.of(endpoint("a").engine) == []


def test_an_engine_that_shuts_down_is_believed_for_a_while() -> None:
    endpoints = ReplicaEndpoints([endpoint("a")])
    assert not endpoints.is_closing(URL, 5)
    endpoints.closes(URL, 10)
    assert endpoints.is_closing(URL, 9)
    assert not endpoints.is_closing(URL, 10)
    endpoints.closes(URL, 20)
    endpoints.has_closed(URL)
    assert not endpoints.is_closing(URL, 11)


def test_nothing_is_remembered_of_engines_that_left() -> None:
    endpoints = ReplicaEndpoints([endpoint("a")])
    endpoints.closes(URL, 10)
    endpoints.replace([endpoint("a")])
    assert endpoints.is_closing(URL, 9)
    endpoints.replace([])
    endpoints.replace([endpoint("a")])
    assert not endpoints.is_closing(URL, 9)


def met_endpoint(url: str = URL, **changes: Any) -> ReplicaEndpoint:
    return dataclasses.replace(endpoint("p", url), connector=Connector.MOONCAKE, is_met=True, **changes)


@pytest.mark.parametrize("other", [{"url": "http://127.0.0.2:1"}, {"bootstrap_port": 9000}, {"rank": 1, "ranks": 2}])
def test_where_a_prefill_worker_is_met_is_heard_anew_of_another_engine(other: dict[str, Any]) -> None:
    """An old address would lead decode workers to a host that does not know the request."""
    old, moved = met_endpoint(), met_endpoint(**other)
    endpoints = ReplicaEndpoints([old])
    endpoints.meets_at(old, Bootstrap("127.0.0.1"))
    endpoints.replace([dataclasses.replace(old, takes_cache_salt=True)])
    assert endpoints.bootstrap_of(old) == Bootstrap("127.0.0.1"), "the same engine, asked of the same"
    endpoints.replace([moved])
    assert endpoints.bootstrap_of(moved) is None
    endpoints.meets_at(old, Bootstrap("127.0.0.1"))
    assert endpoints.bootstrap_of(moved) is None, "the old one was still being asked"
    endpoints.meets_at(moved, Bootstrap("127.0.0.2"))
    assert endpoints.bootstrap_of(moved) == Bootstrap("127.0.0.2")


@pytest.mark.parametrize(
    ("connector", "ranks", "is_bound"),
    [(Connector.NIXL, 1, True), (Connector.NIXL, 2, True), (Connector.ASCEND, 1, True), (Connector.ASCEND, 2, False)],
)
def test_a_side_channels_port_bounds_where_the_ports_of_all_ranks_are_known(
    connector: Connector, ranks: int, is_bound: bool
) -> None:
    told = replace(config("a", ranks=ranks), connector=connector, side_channel_port=5600)
    side_channel = ReplicaEndpoint.from_config(told, TlsContexts()).side_channel
    assert side_channel.has_port(5600 + ranks - 1)
    assert side_channel.has_port(5600 + 16) is not is_bound
