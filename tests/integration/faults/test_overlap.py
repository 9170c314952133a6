"""A replica that was assigned to another gateway, and its former owner: a former owner that hears the controller, or a
peer with a newer snapshot, releases the replica within the stated overlap, and sends nothing there from then on.

Each gateway has a key of its own for all engines, so that engines can tell which gateway sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from gateway.core.vocabulary import RegionName
from loadgen.round_trips import parse_round_trips
from loadgen.wan import Wan
from tests.support.controlled import Controlled, Onlookers, controlled, watched
from tests.support.core import US
from tests.support.processes import QUICK_PEERS
from tests.support.programs import nightside

ENOUGH_S = 100.0
"""Limit after which a condition counts as never fulfilled."""
SILENCE_S, KEEP_ALIVE_S, PING_TIMEOUT_S = 4.0, 0.15, 20.0
OVERLAP_S = SILENCE_S / 2 + KEEP_ALIVE_S + PING_TIMEOUT_S
"""Overlap stated in docs/concepts/controller.md. The time-out of a ping to a peer is long, so that a slow machine fails
no test.
"""
CONTROL = RegionName("control")
REPLICA = "us-1-r0"


@pytest.fixture
async def mesh(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], session: aiohttp.ClientSession
) -> AsyncIterator[Controlled]:
    async with asyncio.timeout(ENOUGH_S), controlled(tmp_path, unused_tcp_port_factory, session) as made:
        yield made


@pytest.mark.nightly
async def test_who_loses_a_replica_lets_go_of_it_whether_the_controller_or_only_a_peer_can_say_so(
    mesh: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh.control = {"silence_max": f"{SILENCE_S}s"}
    mesh.more = {"peering": {**QUICK_PEERS, "ping_timeout": f"{PING_TIMEOUT_S}s"}}
    mesh.replica = {"api_key_env": "ENGINE_KEY"}
    await mesh.prepare("us-1", "ap-1")
    wan = await mesh.stack.enter_async_context(Wan(parse_round_trips(f"{US.region},{CONTROL},1")))
    mesh.ways["us-1"] = await wan.route(US.region, CONTROL, mesh.control_port)
    await mesh.start_controller()
    for name in ("us-1", "ap-1"):
        monkeypatch.setenv("ENGINE_KEY", name)
        await mesh.start_gateway(name)
    await mesh.settled()
    async with watched(mesh) as seen:
        await seen.until_answered("us-1", "ap-1")
        assert pushers(mesh) == {"us-1"}
        await move(mesh, "--to", "ap-1")
        await lets_go(mesh, seen)
        await move(mesh, "--home")
        await mesh.settled()
        await seen.until_answered("us-1")
        wan.cut(US.region, CONTROL)
        await move(mesh, "--to", "ap-1")
        await lets_go(mesh, seen)
        assert mesh.gateways["us-1"].has_logged(
            "peer_reported_newer_ownership",
            peer="ap-1",
        )
        await move(mesh, "--home")
        wan.heal(US.region, CONTROL)
        await mesh.settled()
        await seen.until_answered("us-1", "ap-1")
    seen.check()


async def move(mesh: Controlled, *where: str) -> None:
    assert mesh.controller is not None, "it was started"
    code, out, err = await nightside("ctl", "move", REPLICA, *where, "--admin", mesh.controller.admin_url)
    assert code == 0, out + err


async def lets_go(mesh: Controlled, seen: Onlookers) -> None:
    """Assert that the other gateway serves the replica, and that the first releases it within the overlap and sends
    nothing there again.
    """
    await mesh.until_served("ap-1", "ap-1-r0", REPLICA)
    async with asyncio.timeout(OVERLAP_S):
        await mesh.until_served("us-1")
    await seen.until_answered("us-1")  # also waits for the last requests that it may have sent before
    pushed = len(mesh.engines["us-1"].received)
    for _ in range(3):
        await seen.until_answered("us-1", "ap-1")
    assert "us-1" not in pushers(mesh, pushed)


def pushers(mesh: Controlled, since: int = 0) -> set[str]:
    """Keys of the requests that the engine received."""
    return {each.headers["authorization"].removeprefix("Bearer ") for each in mesh.engines["us-1"].received[since:]}
