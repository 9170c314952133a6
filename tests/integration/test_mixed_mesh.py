"""A mesh in which one gateway is of the previous version: it knows no exchange, neither as caller nor as called."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.peers.calls import CallWords
from gateway.peers.exchange.called import CalledForward
from tests.fakes.engine import GOOD_STREAM
from tests.support.core import AP, EU, LAYERED, US, under
from tests.support.gateways import ask, counted, until, usable_peers
from tests.support.regions import Mesh, Region, good_answer
from tests.support.rest import until_at_rest


async def three(mesh: Mesh, old: str) -> dict[str, Region]:
    """Three regions with one free engine each."""
    regions = {
        place.jurisdiction: await mesh.region(gateway_id, place)
        for gateway_id, place in (("us-1", US), ("eu-1", EU), ("ap-1", AP))
    }
    for region in regions.values():
        peering = replace(region.config.peering, exchange=region.config.gateway_id != old)
        region.config = replace(region.config, peering=peering, core=under(LAYERED, region.config.core))
    await mesh.start(*regions.values())
    return {str(region.config.gateway_id): region for region in regions.values()}


@pytest.mark.parametrize("old", ["us-1", "eu-1", "nobody"])
async def test_every_gateway_forwards_to_every_other_each_as_both_know_how(
    mesh: Mesh, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    frames: list[object] = []
    noting(monkeypatch, CallWords, calls)
    noting(monkeypatch, CalledForward, frames)
    regions = await three(mesh, old)
    for name, origin in regions.items():
        others = [each for each in regions.values() if each is not origin]
        for target in others:
            calls.clear()
            frames.clear()
            (third,) = [each for each in others if each is not target]
            await origin.become_busy()
            await third.become_busy()
            await until(partial(knows_who_is_free, origin, target, third))
            before = len(target.engine.received)
            await good_answer(mesh, origin)
            assert len(target.engine.received) == before + 1
            is_old = old in (name, target.config.gateway_id)
            assert (len(calls), len(frames)) == ((1, 0) if is_old else (0, 1))
            await origin.become_free()
            await third.become_free()
    gateways = [each.gateway for each in regions.values()]
    await until_at_rest(*gateways)
    for gateway in gateways:
        assert usable_peers(gateway) == 2
        assert counted(gateway, "attempts_total", target="peer", result="failed") == 0


def knows_who_is_free(origin: Region, target: Region, third: Region) -> bool:
    """True if the origin knows by heartbeats that the target has free replicas and the third region has none."""

    def available(region: Region) -> int:
        state = origin.gateway.core.peers.get(region.config.gateway_id)
        report = None if state is None else state.report
        return -1 if report is None else sum(each.available for each in report.capacities)

    return available(target) > 0 and available(third) == 0


def noting(monkeypatch: pytest.MonkeyPatch, kind: type, made: list[object]) -> None:
    begin = kind.__init__  # type: ignore[misc]

    def note(self: object, *rest: object) -> None:
        made.append(self)
        begin(self, *rest)

    monkeypatch.setattr(kind, "__init__", note)


async def test_the_first_forwards_to_a_peer_of_the_version_before_are_many_and_large_and_none_has_failed(
    mesh: Mesh,
) -> None:
    """No forward reached the peer before one went out as a call."""
    regions = await three(mesh, "eu-1")
    us, eu, ap = regions["us-1"], regions["eu-1"], regions["ap-1"]
    await us.become_busy()
    await ap.become_busy()
    await until(partial(knows_who_is_free, us, eu, ap))
    messages = [{"role": "user", "content": "x" * 1_000_000}]

    async def client() -> bytes:
        async with ask(mesh.session, us.gateway.http_url, messages=messages) as response:
            return await response.read()

    async with asyncio.TaskGroup() as tasks:
        clients = [tasks.create_task(client()) for _ in range(8)]
    assert {each.result() for each in clients} == {b"".join(GOOD_STREAM)}
    assert len(eu.engine.received) == 8
    assert counted(us.gateway, "attempts_total", target="peer", result="failed") == 0
    await until_at_rest(us.gateway, eu.gateway)
