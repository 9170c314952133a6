"""A controller with attached gateways: the snapshots they get, and the failures it survives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import grpc.aio
import pytest
from msgspec.structs import replace

from controller.app import ControllerHandle, serve_controller
from gateway.core.vocabulary import ControlVersion, GatewayId, ReplicaId
from mesh.control.codec import said_by_gateway
from mesh.control.vocabulary import LeftOut, PeerHeard, Report
from tests.fakes.attached import hello, replica_document
from tests.fakes.engine import FakeEngine
from tests.support.controllers import plain_gateway, read_file
from tests.support.core import AP, EU, US, policy, rule
from tests.support.gateways import until
from tests.support.histories import history_of
from tests.support.processes import gateway_process, region_file


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
        await until(lambda: link.taken == us.newest.version == link.pushed)


async def test_bytes_that_are_no_message_end_the_stream_and_are_no_error_of_ours(
    controller: ControllerHandle, caplog: pytest.LogCaptureFixture
) -> None:
    said = said_by_gateway(hello("us-1", US)).SerializeToString()
    for messages in ([b"\xff"], [said, b"\xff"]):
        async with grpc.aio.insecure_channel(str(controller.grpc_address)) as channel:
            call: Any = channel.stream_stream("/nightside.mesh.v1.ControlService/Attach")()
            for each in messages:
                await call.write(each)
            with suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.exc_info]


async def test_one_that_announces_more_replicas_than_it_may_is_refused_and_named(tmp_path: Path) -> None:
    async with serve_controller(read_file(tmp_path, link={"replicas_max": 2})) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("us-1", US)) as us, plain_gateway(address, hello("eu-1", EU, 3)) as eu:
            assert "it announces 3 replicas, and at most 2 are taken (link.replicas_max)" in await eu.until_ended()
            await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
            assert list(controller.manager.registry.gateways) == ["us-1"]


async def test_a_gateway_whose_next_stream_ends_before_it_is_registered_is_not_connected(tmp_path: Path) -> None:
    async with serve_controller(read_file(tmp_path, link={"replicas_max": 2})) as controller:
        address, health = controller.grpc_address, controller.manager.core.health
        async with plain_gateway(address, hello("us-1", US)) as first:
            await first.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
            assert health[GatewayId("us-1")].connected
            async with plain_gateway(address, hello("us-1", US, 3)) as second:
                assert "it announces 3 replicas" in await second.until_ended()
                await until(lambda: not health[GatewayId("us-1")].connected)


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


async def test_the_report_of_a_lost_peer_counts_at_once_after_a_regular_one(controller: ControllerHandle) -> None:
    us = GatewayId("us-1")
    async with plain_gateway(controller.grpc_address, hello("eu-1", EU)) as eu:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)):
            await until(lambda: us in controller.manager.core.health)
            for is_broken in (False, True):
                await eu.heard(PeerHeard(us, 10_000_000, is_broken=is_broken))
            health = controller.manager.core.health[us]
            await until(lambda: bool(health.said_by) and health.said_by[GatewayId("eu-1")].is_broken)


async def test_a_pool_goes_to_a_gateway_that_can_serve_it_and_on_to_the_next(controller: ControllerHandle) -> None:
    pool = {"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode": {"policy": "br_h"}}
    members = tuple(replica_document(role, pool=pool, role=role) for role in ("prefill", "decode"))
    home, near, far = hello("us-1", US, 0), hello("eu-1", EU, 0), hello("ap-1", AP, 0)
    home = replace(home, announcement=replace(home.announcement, replicas=members))
    able = replace(far.announcement, abilities=("connector nixl", "decode_policy br_h"))
    address = controller.grpc_address
    async with (
        plain_gateway(address, near) as eu,
        plain_gateway(address, replace(far, announcement=able)) as ap,
    ):
        async with plain_gateway(address, home) as us:
            await us.until(lambda us: us.replica_ids == ["decode", "prefill"])
        for each in (eu, ap):
            await each.heard(PeerHeard(GatewayId("us-1"), 10_000_000, is_broken=True))
        await ap.until(lambda ap: ap.replica_ids == ["decode", "prefill"])
        refused = tuple(LeftOut(ReplicaId(role), "its key is not here") for role in ("prefill", "decode"))
        while ap.replica_ids:  # a report soon after another one is passed over
            await ap.say(Report((), left_out=refused))
            await asyncio.sleep(0.05)
        ((count, why),) = controller.manager.core.orphans.values()
        assert count == 2
        assert "ap-1 left it out (its key is not here)" in why
        assert "eu-1 lacks connector nixl, decode_policy br_h" in why
        await eu.say(replace(near.announcement, abilities=able.abilities))
        await eu.until(lambda eu: eu.replica_ids == ["decode", "prefill"])
        assert not controller.manager.core.orphans
        async with plain_gateway(address, home) as us:
            await us.until(lambda us: us.replica_ids == ["decode", "prefill"] and not us.newest.away)


async def test_the_history_of_a_pool_goes_with_it_and_comes_home_before_the_pool_does(tmp_path: Path) -> None:
    pool = {"name": "pd", "kind": "disaggregated", "connector": "nixl"}
    members = tuple(replica_document(role, pool=pool, role=role) for role in ("prefill", "decode"))
    home, near = hello("us-1", US, 0), hello("eu-1", EU, 0)
    home = replace(home, announcement=replace(home.announcement, replicas=members))
    near = replace(near, announcement=replace(near.announcement, abilities=("connector nixl",)))
    both = ["decode", "prefill"]
    async with serve_controller(read_file(tmp_path, region=str(AP.region))) as controller:
        histories = controller.histories
        async with plain_gateway(controller.grpc_address, near) as eu:
            async with plain_gateway(controller.grpc_address, home) as us:
                await us.until(lambda us: us.replica_ids == both)
                assert us.wants_histories == AP
                await us.say(replace(history_of(5, 6), prompt_tokens=b""))
                await until(lambda: "prompt_tokens: it has 0 bytes" in histories.last_refusal)
                await us.say(history_of(5, 6))
                await until(lambda: len(histories.histories) == 1)
                await eu.say(history_of(1, by="eu-1"))
                await until(lambda: "eu-1 does not serve the pool" in histories.last_refusal)
                assert not eu.histories
            await eu.heard(PeerHeard(GatewayId("us-1"), 10_000_000, is_broken=True))
            await eu.until(lambda eu: eu.replica_ids == both)
            ((before, history),) = eu.histories
            assert history == history_of(5, 6)
            assert eu.snapshots[before].replicas, "the next snapshot has the pool"
            assert not eu.snapshots[before - 1].replicas
            recorded = history_of(9, by="eu-1")
            await eu.say(recorded)
            counted = "nightside_controller_pool_histories_total"
            await until(lambda: controller.metrics.registry.get_sample_value(counted, {"result": "kept"}) == 2)
            async with plain_gateway(controller.grpc_address, home) as us:
                await us.until(lambda us: us.replica_ids == both and not us.newest.away)
                assert [each for _, each in us.histories] == [history_of(5, 6), recorded]
                assert us.snapshots[us.histories[0][0]].replicas
                await eu.until(lambda eu: not eu.replica_ids)
                assert len(eu.histories) == 1
            await eu.heard(PeerHeard(GatewayId("us-1"), 10_000_000, is_broken=True))
            await eu.until(lambda eu: eu.replica_ids == both)
            assert [each for _, each in eu.histories[1:]] == [history_of(5, 6), recorded], "a second stay away"
            assert histories.describe() == {"kept": 2, "withheld": [], "last_refusal": histories.last_refusal}
            await eu.say(policy(EU, process=rule(EU)))
            await until(lambda: len(histories.histories) == 1)


async def test_it_answers_for_the_one_name_and_leads_away_from_the_dead(tmp_path: Path) -> None:
    naming = {"zone": "mesh.test", "networks": {"us-east-1": ["127.0.0.0/8"]}}
    file = read_file(tmp_path, naming=naming, dns={"listen": ["127.0.0.1:0"]})
    async with serve_controller(file) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("eu-1", EU)) as eu, plain_gateway(address, hello("ap-1", AP)) as ap:
            async with plain_gateway(address, hello("us-1", US, address="192.0.2.77")) as us:
                await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
                others = {hello(name, EU).announcement.client_addresses[0] for name in ("eu-1", "ap-1")}
                named = await until_named(controller, *({"192.0.2.77", each} for each in others))
                assert "192.0.2.77" in named, "the nearest, and one that is tried where it refuses"
            for each in (eu, ap):
                await each.heard(PeerHeard(GatewayId("us-1"), 10_000_000, is_broken=True))
            assert await until_named(controller, others) == others
        page = controller.metrics.render()
    assert b'nightside_dns_queries_total{answer="answered",type="A"}' in page
    assert b"nightside_dns_records_version" in page


async def until_named(controller: ControllerHandle, *wanted: set[str]) -> set[str]:
    (server,) = controller.dns_addresses
    while True:
        query = dns.message.make_query("mesh.test.", "A")
        answer = await dns.asyncquery.udp(query, server.host, port=server.port, timeout=30)
        told = {str(each) for rrset in answer.answer for each in rrset}
        if told in wanted:
            return told
        await asyncio.sleep(0.05)


async def test_a_gateway_of_ours_attaches_takes_what_it_is_told_and_dies(tmp_path: Path, engine: FakeEngine) -> None:
    async with serve_controller(read_file(tmp_path)) as controller:
        control = {"controllers": [str(controller.grpc_address)], "client_addresses": ["192.0.2.1"]}
        state = {"folder": str(tmp_path / "us-1")}
        region = region_file(tmp_path, "us-1", US, engine, control=control, state=state)
        async with gateway_process(region) as gateway:
            await until(lambda: GatewayId("us-1") in controller.links)
            link = controller.links.get(GatewayId("us-1"))
            assert link is not None
            await until(lambda: link.pushed is not None and link.taken == link.pushed)
            assert list(controller.manager.registry.replicas) == ["us-1-r0"]
            gateway.signal(signal.SIGKILL)
            await until(lambda: GatewayId("us-1") not in controller.links)


async def test_a_gateway_of_ours_takes_what_a_controller_says_that_has_lost_its_store(
    tmp_path: Path, engine: FakeEngine
) -> None:
    us_1 = GatewayId("us-1")

    async def until_taken(controller: ControllerHandle) -> ControlVersion:
        await until(lambda: us_1 in controller.links)
        link = controller.links.get(us_1)
        assert link is not None
        await until(lambda: link.pushed is not None and link.taken == link.pushed)
        return link.taken

    async with AsyncExitStack() as stack:
        async with serve_controller(read_file(tmp_path / "before")) as controller:
            address = str(controller.grpc_address)
            control = {"controllers": [address], "client_addresses": ["192.0.2.1"]}
            state = {"folder": str(tmp_path / "us-1")}
            region = region_file(tmp_path, "us-1", US, engine, control=control, state=state)
            await stack.enter_async_context(gateway_process(region))
            before = await until_taken(controller)
        listen = {"grpc": address, "admin": "127.0.0.1:0"}
        async with serve_controller(read_file(tmp_path / "after", listen=listen)) as controller:
            after = await until_taken(controller)
            assert (after.term, list(controller.manager.registry.replicas)) == (before.term + 1, ["us-1-r0"])


async def test_it_counts_the_log_lines_that_it_lost(tmp_path: Path) -> None:
    async with serve_controller(read_file(tmp_path), lines_lost=lambda: 7) as controller:
        await until(lambda: b"nightside_controller_log_lines_lost_total 7.0" in controller.metrics.render())
