"""A controller with gateways that attach to it: what they are told, and what it survives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.app import ControllerHandle, serve_controller
from gateway.core.vocabulary import GatewayId
from gateway.ground.control.vocabulary import PeerHeard
from tests.fakes.attached import hello
from tests.support.controllers import plain_gateway, read_file
from tests.support.core import AP, EU, US


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[ControllerHandle]:
    async with serve_controller(read_file(tmp_path)) as handle:
        yield handle


async def test_a_gateway_that_attaches_is_told_what_it_serves_and_who_else_there_is(
    controller: ControllerHandle,
) -> None:
    address = controller.grpc_address
    async with plain_gateway(address, hello("us-1", US)) as us, plain_gateway(address, hello("eu-1", EU)) as eu:
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"] and len(us.newest.peers) == 1)
        await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"] and len(eu.newest.peers) == 1)
        assert us.newest.peers[0].gateway_id == "eu-1"
        assert us.newest.version.term == 1
        link = controller.links.get(GatewayId("us-1"))
        assert link is not None
        await us.until(lambda us: us.alive > 0)
        assert link.taken == us.newest.version == link.pushed


async def test_what_a_dead_gateway_had_goes_to_another_and_comes_home_with_it(controller: ControllerHandle) -> None:
    address = controller.grpc_address
    async with plain_gateway(address, hello("eu-1", EU)) as eu, plain_gateway(address, hello("ap-1", AP)) as ap:
        async with plain_gateway(address, hello("us-1", US)) as us:
            await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        for each in (eu, ap):
            await each.heard(PeerHeard(GatewayId("us-1"), 10_000_000, is_broken=True))
        await eu.until(lambda eu: len(eu.newest.away) == 2)
        both = [*eu.replica_ids, *ap.replica_ids]
        await ap.until(lambda ap: len(ap.newest.away) == 2)
        adopted = [each for each in (*eu.newest.replicas, *ap.newest.replicas) if each.home == "us-1"]
        assert len(adopted) == 2, both
        assert all(each.accepts is not None and each.accepts.allows(US) for each in adopted)
        async with plain_gateway(address, hello("us-1", US)) as us:
            await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"] and not us.newest.away)
