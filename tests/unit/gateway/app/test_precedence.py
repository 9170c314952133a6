from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.app import precedence
from gateway.app.precedence import Precedence
from gateway.config.orders import Orders, OrdersRefused
from gateway.config.sections import GatewayConfig
from gateway.core.vocabulary import ControlVersion, GatewayId, PlaceRule, ReplicaId
from mesh.control.vocabulary import (
    NO_GATEWAY,
    ControlSnapshot,
    Ownership,
    PeerGrant,
    ReplicaGrant,
    ReplicaOwner,
)
from mesh.faults import ConfigError
from tests.support.core import EU, REGIONS, US
from tests.support.gateways import region_config

OURS, THEIRS = GatewayId("us-1"), GatewayId("eu-1")
PEER = PeerGrant(THEIRS, EU, "127.0.0.1:9")


def owner(name: str, who: GatewayId) -> ReplicaOwner:
    return ReplicaOwner(ReplicaId(name), OURS, who)


def grant(name: str) -> ReplicaGrant:
    """Grant of a replica whose home is elsewhere."""
    document = {
        "id": name,
        "url": "http://127.0.0.1:9",
        "models": ["m"],
        "region": EU.region,
        "jurisdiction": EU.jurisdiction,
    }
    return ReplicaGrant(json.dumps(document), THEIRS, EU, PlaceRule())


def snapshot(version: int, term: int = 1, **more: Any) -> ControlSnapshot:
    return replace(ControlSnapshot(ControlVersion(term, version), OURS), **more)


class Told:
    def __init__(self) -> None:
        self.local = region_config("us-1", US, [], policy_file=Path("policy.yaml"))
        self.applied: list[tuple[GatewayConfig, Orders]] = []
        self.refuses = False
        self.precedence = Precedence(self.local, REGIONS)
        self.precedence.start(self._apply)

    def _apply(self, config: GatewayConfig, orders: Orders) -> None:
        if self.refuses:
            raise ConfigError("no")
        self.applied.append((config, orders))

    @property
    def last(self) -> Orders:
        return self.applied[-1][1]


@pytest.fixture
def told() -> Told:
    return Told()


async def test_each_change_puts_in_force_what_all_of_them_come_to(told: Told) -> None:
    await told.precedence.take(snapshot(1, peers=(PEER,), away=(owner("r1", THEIRS),)))
    changed = replace(told.local, core=replace(told.local.core, queue=replace(told.local.core.queue, length_max=3)))
    await told.precedence.reload(changed)
    assert told.applied[-1][0] is changed
    assert (told.last.core.queue.length_max, len(told.last.peers), told.last.away) == (3, 1, frozenset({"r1"}))
    await told.precedence.take(snapshot(2))
    assert (told.last.core.queue.length_max, told.last.peers, told.last.away) == (3, (), frozenset[str]())


async def test_the_same_word_again_changes_nothing_and_an_older_one_is_refused(told: Told) -> None:
    await told.precedence.take(snapshot(2))
    await told.precedence.take(snapshot(2))
    assert len(told.applied) == 1
    with pytest.raises(OrdersRefused, match=r"it is older than 1\.2"):
        await told.precedence.take(snapshot(1))
    await told.precedence.take(snapshot(1, term=2))
    assert told.precedence.version == ControlVersion(2, 1)


async def test_one_that_is_overtaken_while_it_is_read_is_not_taken(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams may overlap for a moment: the one that is given up, and its successor."""
    is_overtaken, read = threading.Event(), precedence._orders

    def read_slowly(*of: Any) -> Orders:
        if of[1] is older:
            is_overtaken.wait(60)
        return read(*of)

    monkeypatch.setattr(precedence, "_orders", read_slowly)
    older = snapshot(9)
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(_refused(told.precedence.take(older)))
        await asyncio.sleep(0)
        await told.precedence.take(snapshot(1, term=2))
        is_overtaken.set()
    assert taking.result() == "it is older than 2.1, which is in force"
    assert told.precedence.version == told.last.version == ControlVersion(2, 1)


async def _refused(taking: Awaitable[None]) -> str:
    try:
        await taking
    except OrdersRefused as refused:
        return str(refused)
    return ""


async def test_what_cannot_be_put_in_force_is_forgotten(told: Told) -> None:
    await told.precedence.take(snapshot(1))
    told.refuses = True
    with pytest.raises(ConfigError):
        await told.precedence.take(snapshot(2))
    with pytest.raises(ConfigError):
        await told.precedence.reload(replace(told.local, seed=9))
    assert told.precedence.version == ControlVersion(1, 1)
    assert told.precedence.local is told.local


async def test_hearsay_only_takes_away_and_only_until_a_controller_speaks(told: Told) -> None:
    await told.precedence.take(snapshot(1, away=(owner("r1", THEIRS),)))
    heard = Ownership(ControlVersion(1, 5), (owner("r1", OURS), owner("r2", THEIRS)))
    told.precedence.hear(heard)
    assert told.last.away == {"r1", "r2"}, "nothing comes back because a peer says so"
    assert told.last.version == ControlVersion(1, 1)
    assert told.precedence.ownership.version == ControlVersion(1, 1), "hearsay is not handed on"
    await told.precedence.reload(replace(told.local, seed=9))
    assert told.last.away == {"r1", "r2"}
    await told.precedence.take(snapshot(5, away=(owner("r1", THEIRS),)))
    assert told.last.away == {"r1"}
    assert told.precedence.hearsay == Ownership(), "the controller has said as much"


@pytest.mark.parametrize("version", [3, 4])
async def test_a_controller_that_knows_less_than_a_peer_brings_nothing_back(told: Told, version: int) -> None:
    await told.precedence.take(snapshot(3))
    told.precedence.hear(Ownership(ControlVersion(1, 5), (owner("r2", THEIRS),)))
    await told.precedence.take(snapshot(version))
    assert told.precedence.away == told.last.away == {"r2"}
    assert told.precedence.hearsay.version == ControlVersion(1, 5)


async def test_what_was_adopted_is_let_go_of_once_a_peer_knows_that_it_went_home(told: Told) -> None:
    """A replica that went home is in no list of replicas that are away."""
    grants = tuple(grant(each) for each in ("a1", "a2", "a3"))
    away = tuple(ReplicaOwner(ReplicaId(each), THEIRS, OURS) for each in ("a1", "a2", "a3"))
    await told.precedence.take(snapshot(1, replicas=grants, away=away))
    assert told.last.away == frozenset[str]()
    third = ReplicaOwner(ReplicaId("a3"), THEIRS, GatewayId("ap-1"))
    told.precedence.hear(Ownership(ControlVersion(1, 5), (away[1], third)))
    assert told.last.away == {"a1", "a3"}
    assert {each.spec.replica_id for each in told.last.replicas} == {"a1", "a2", "a3"}
    told.precedence.hear(Ownership(ControlVersion(1, 6)))
    assert told.last.away == {"a1", "a2", "a3"}, "all of them went home"


async def test_what_is_nobodys_by_order_is_served_by_nobody(told: Told) -> None:
    await told.precedence.take(snapshot(1, away=(owner("r1", NO_GATEWAY),)))
    assert told.last.away == {"r1"}
    told.precedence.hear(Ownership(ControlVersion(1, 5), (owner("r2", NO_GATEWAY),)))
    assert told.last.away == {"r1", "r2"}


async def test_what_is_news_is_newer_than_all_that_was_said_and_heard(told: Told) -> None:
    await told.precedence.take(snapshot(3))
    assert not told.precedence.would_be_news(ControlVersion(1, 3))
    told.precedence.hear(Ownership(ControlVersion(1, 5)))
    assert [told.precedence.would_be_news(ControlVersion(1, each)) for each in (4, 5, 6)] == [False, False, True]


def test_it_begins_with_what_was_kept() -> None:
    precedence = Precedence(region_config("us-1", US, [], policy_file=Path("policy.yaml")), REGIONS)
    with pytest.raises(OrdersRefused):
        precedence.restore(replace(snapshot(4), gateway_id=THEIRS))
    precedence.restore(snapshot(4, away=(owner("r1", THEIRS),)))
    assert (precedence.version, precedence.orders.away) == (ControlVersion(1, 4), frozenset({"r1"}))
