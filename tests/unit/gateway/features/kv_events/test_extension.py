"""Subscriptions of one gateway, as its replicas change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core import events
from gateway.core.features.kv_events.events import UnheardReason
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.core.vocabulary import ReplicaId
from gateway.features.extension import Host
from gateway.features.kv_events.extension import KvEventsExtension, address_of
from mesh.clock import Clock
from mesh.supervisor import OwnedLoops, Supervisor
from tests.support.core import US, desk, replica_spec
from tests.support.gateways import region_config

R0 = ReplicaId("r0")
REPLICA = ReplicaConfig(
    replace(replica_spec("r0"), tells_cache=True),
    "http://127.0.0.1:8000",
    Dialect.VLLM,
    kv_events_port=1,
    kv_events_replay_port=11,
)


@asynccontextmanager
async def following(replica: ReplicaConfig) -> AsyncIterator[tuple[KvEventsExtension, list[events.Event]]]:
    """Extension that follows an engine which is heard, though it does not answer, and the events it submits."""
    one = desk(replicas=[replica.spec])
    submitted: list[events.Event] = []

    def submit(event: events.Event) -> None:
        submitted.append(event)
        one.tell(event)

    metrics = SimpleNamespace(registry=CollectorRegistry())
    host = SimpleNamespace(core=one.core, clock=Clock(), log=structlog.get_logger(), metrics=metrics, submit=submit)
    extension = KvEventsExtension(region_config("us-1", US, [], policy_file=Path("none.yaml")), cast("Host", host))
    async with Supervisor(host.clock, _fail) as loops:
        extension.run(loops, OwnedLoops(loops, host.clock, _fail))
        extension.follow([replica])
        one.tell(events.EngineTold(R0, (), is_first=True))
        assert kv_events_of(one.core).hears(R0)
        yield extension, submitted


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


def test_each_rank_has_ports_of_its_own() -> None:
    address = address_of(replace(REPLICA, rank=2))
    assert address is not None
    assert (address.host, address.port, address.replay_port) == ("127.0.0.1", 3, 13)


@pytest.mark.parametrize(
    "then",
    [
        [],
        [replace(REPLICA, url="http://127.0.0.2:8000")],
        [replace(REPLICA, url="http://127.0.0.1:8001")],
        [replace(REPLICA, kv_events_port=2)],
    ],
)
async def test_an_engine_that_is_followed_no_longer_does_not_count(then: list[ReplicaConfig]) -> None:
    async with following(REPLICA) as (extension, submitted):
        extension.follow(then)
        assert submitted == [events.EngineUnheard(R0, UnheardReason.STOPPED)]
        assert set(extension.describe()) == {R0 for _ in then}


async def test_an_engine_that_stays_is_followed_on() -> None:
    async with following(REPLICA) as (extension, submitted):
        extension.follow([replace(REPLICA)])
        assert submitted == []
