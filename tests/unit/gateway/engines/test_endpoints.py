from __future__ import annotations

import asyncio

from gateway.config import Dialect, ReplicaConfig
from gateway.core.vocabulary import ReplicaId
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from tests.support.core import EU, replica_spec


def endpoint(name: str, url: str = "http://127.0.0.1:1") -> ReplicaEndpoint:
    return ReplicaEndpoint.from_config(ReplicaConfig(replica_spec(name, EU), url, Dialect.VLLM, "secret"))


def test_an_endpoint_is_where_its_replica_is() -> None:
    made = endpoint("a")
    assert (made.replica_id, made.place, made.dialect) == ("a", EU, Dialect.VLLM)


def test_the_key_is_sent_and_never_shown() -> None:
    assert endpoint("a").authorization() == {"authorization": "Bearer secret"}
    assert "secret" not in repr(endpoint("a"))


async def test_replacing_wakes_everyone_who_follows() -> None:
    endpoints = ReplicaEndpoints([endpoint("a")])
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(endpoints.until_replaced())
        await asyncio.sleep(0)
        endpoints.replace([endpoint("b", "http://127.0.0.1:2")])
    assert endpoints.ids() == ["b"]
    assert endpoints.get(ReplicaId("a")) is None
