"""Forwards between whole gateways in one process, each with fake engines of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.kernel.description import gauges_of
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_STREAM,
    ROLE,
    STOP,
    Exchange,
    answer,
    hang,
    stream_until,
    token,
)
from tests.support.core import AP, EU, MS, SECOND, US, unresumed
from tests.support.gateways import (
    QUICK_PEERING,
    ask,
    counted,
    free_replicas,
    knowing,
    until,
    usable_peers,
    write_policy,
)
from tests.support.regions import Mesh, Region, busy_us_and_free_eu, good_answer, regions_apart


async def test_a_forward_streams_byte_for_byte_and_says_where_it_ran(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    async with ask(mesh.session, us.gateway.http_url) as response:
        body = await response.read()
    assert response.status == 200
    assert body == b"".join(GOOD_STREAM)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-nightside-region"] == EU.region
    assert response.headers["x-nightside-gateway"] == "us-1"
    (received,) = eu.engine.received
    assert received.headers["x-request-id"] == response.headers["x-request-id"]
    assert us.engine.received == []
    assert counted(us.gateway, "forwards_sent_total", peer="eu-1") == 1
    assert counted(eu.gateway, "forwards_received_total", peer="us-1", answer="accepted") == 1
    assert counted(us.gateway, "output_tokens_total", model="llama", ran="forward", counted="usage") == 6
    assert counted(eu.gateway, "forwards_output_tokens_total", model="llama", counted="usage") == 6
    assert counted(eu.gateway, "output_tokens_total", model="llama", ran="local", counted="usage") == 0


async def test_tokens_are_passed_on_as_they_come(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    go_on = asyncio.Event()
    eu.engine.plays(stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE)))
    async with ask(mesh.session, us.gateway.http_url) as response:
        first = await response.content.readany()
        assert first == ROLE + token("Hel")
        go_on.set()
        assert await response.content.read() == token("lo") + STOP + DONE


async def test_a_whole_answer_comes_back_with_its_length(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    eu.engine.plays(answer())
    async with ask(mesh.session, us.gateway.http_url, stream=False) as response:
        assert await response.read() == GOOD_ANSWER
    assert response.headers["content-length"] == str(len(GOOD_ANSWER))
    assert response.headers["x-nightside-region"] == EU.region


async def test_a_clients_error_is_passed_on_and_held_against_nobody(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    explained = b'{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}'
    eu.engine.plays(answer(400, explained))
    async with ask(mesh.session, us.gateway.http_url) as response:
        assert (response.status, await response.read()) == (400, explained)
    assert counted(us.gateway, "attempts_total", target="peer", result="client_error") == 1
    assert usable_peers(us.gateway) == 1


async def test_a_large_body_and_a_large_answer_travel(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    large = GOOD_ANSWER.replace(b"Hello", b"Hello" * 400_000)
    eu.engine.plays(answer(200, large))
    content = "x" * 8_000_000
    messages = [{"role": "user", "content": content}]
    async with ask(mesh.session, us.gateway.http_url, stream=False, messages=messages) as response:
        assert await response.read() == large
    assert content.encode() in eu.engine.received[0].body


@pytest.mark.parametrize("after_first_byte", [True, False])
async def test_a_client_that_leaves_is_noticed_by_the_remote_engine(mesh: Mesh, after_first_byte: bool) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    never = asyncio.Event()
    eu.engine.plays(stream_until(never, (ROLE, token("Hel"))) if after_first_byte else hang)

    async def client() -> None:
        async with ask(mesh.session, us.gateway.http_url) as response:
            await response.read()

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client())
        await eu.engine.arrived.reaches(1)
        asking.cancel()
    await eu.engine.aborted.reaches(1)
    await until(lambda: counted(us.gateway, "requests_total", model="llama", outcome="abandoned") == 1)
    await until(lambda: counted(eu.gateway, "forwards_ended_total", model="llama", outcome="abandoned") == 1)
    assert us.gateway.driver.open_requests == 0


async def test_a_refused_forward_goes_back_to_its_place(mesh: Mesh, tmp_path: Path) -> None:
    us = await mesh.region("us-1", US)
    eu = await mesh.region("eu-1", EU, write_policy(tmp_path, EU, accept=[AP]))
    await mesh.start(us, eu)
    await us.become_busy()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(good_answer(mesh, us))
        refused = {"peer": "eu-1", "reason": "residency_not_accepted"}
        await until(lambda: counted(us.gateway, "forwards_refused_total", **refused) > 0)
        await us.become_free()
    assert asking.result().headers["x-nightside-region"] == US.region
    assert eu.engine.received == []


async def test_a_peer_that_dies_before_the_first_byte_costs_only_time(mesh: Mesh) -> None:
    us, eu, ap = await mesh.region("us-1", US), await mesh.region("eu-1", EU), await mesh.region("ap-1", AP)
    await mesh.start(us, eu, ap)
    await us.become_busy()
    await ap.become_busy()
    await until(lambda: available_at(us, ap) == 0)
    eu.engine.plays(hang)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(good_answer(mesh, us))
        await eu.engine.arrived.reaches(1)
        await eu.stop()
        await ap.become_free()
    assert asking.result().headers["x-nightside-region"] == AP.region
    assert counted(us.gateway, "retries_total", after="failed") == 1


async def test_a_peer_that_dies_midway_is_told_to_the_client(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh, core=unresumed())
    eu.engine.plays(stream_until(asyncio.Event(), (ROLE, token("Hel"))))
    async with ask(mesh.session, us.gateway.http_url) as response:
        assert await response.content.readany() == ROLE + token("Hel")
        await eu.stop()
        rest = await response.read()
    assert b'"code":"engine_failed_midstream"' in rest
    assert rest.endswith(DONE)
    told = json.loads(rest.removeprefix(b"data: ").partition(b"\n")[0])["error"]["message"]
    assert not {"engine", "peer", "eu-1"} & set(told.lower().strip(".").split()), (
        "it was no engine, and who is not said"
    )
    request_id = response.headers["x-request-id"]
    async with mesh.session.get(f"{us.gateway.admin_url}/admin/explain/{request_id}") as explained:
        here = (await explained.json())["here"]
    assert here["detail"].startswith("peer:eu-1: "), "operators are told who"
    assert here["placements"][-1]["target"] == "eu-1"


async def test_an_engine_that_dies_midway_behind_a_peer_is_told_to_the_client(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)

    async def die(exchange: Exchange) -> None:
        await stream_until(die_now, (ROLE, token("Hel")))(exchange)
        exchange.cut()

    die_now = asyncio.Event()
    eu.engine.plays(die)
    async with ask(mesh.session, us.gateway.http_url) as response:
        assert await response.content.readany() == ROLE + token("Hel")
        die_now.set()
        assert b'"code":"engine_failed_midstream"' in await response.read()


async def test_a_peer_in_another_place_than_configured_is_no_target(mesh: Mesh) -> None:
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    eu.config = knowing(eu.config, us.config)
    us.config = knowing(us.config, replace(eu.config, place=AP))
    for region in (us, eu):
        await region.start()
        mesh.on_close(region.stop)
    await until(lambda: counted(us.gateway, "targets_lost_total", target="peer") > 0)
    await us.become_busy()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(good_answer(mesh, us))
        await until(lambda: gauges_of(us.gateway.core, 0).queue_length == 1)
        lost = counted(us.gateway, "targets_lost_total", target="peer")
        await until(lambda: counted(us.gateway, "targets_lost_total", target="peer") > lost)
        assert gauges_of(us.gateway.core, 0).queue_length == 1
        await us.become_free()
    assert asking.result().headers["x-nightside-region"] == US.region
    assert eu.engine.received == []


async def test_a_draining_peer_is_left_alone_and_finishes_what_it_has(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    go_on = asyncio.Event()
    eu.engine.plays(stream_until(go_on, (ROLE, token("Hel")), (STOP, DONE)))
    async with ask(mesh.session, us.gateway.http_url) as response, asyncio.TaskGroup() as tasks:
        await response.content.readany()
        draining = tasks.create_task(eu.gateway.drain(60))
        await until(lambda: usable_peers(us.gateway) == 0)
        assert not draining.done()
        go_on.set()
        assert await response.read() == STOP + DONE
    assert draining.result() is True


async def test_a_client_that_reads_nothing_holds_back_the_remote_engine(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    piece, pieces, sent = token("y" * 2**16), 2**10, 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.head()
        await exchange.send(ROLE + token("a"))
        for sent in range(pieces):  # noqa: B007 - watched from outside
            await exchange.send(piece)
        await exchange.send(STOP + DONE)

    eu.engine.plays(script)
    async with ask(mesh.session, us.gateway.http_url) as response:
        await until_it_rests(lambda: sent)
        assert sent < pieces // 2
        size = 0
        async for data in response.content.iter_any():
            size += len(data)
    assert size == len(ROLE + token("a") + STOP + DONE) + pieces * len(piece)


async def until_it_rests(value: Callable[[], int]) -> None:
    """Wait until the value has not changed for a while."""
    seen, unchanged = -1, 0
    while unchanged < 20:
        await asyncio.sleep(0.01)
        unchanged = unchanged + 1 if value() == seen else 0
        seen = value()


async def test_a_peer_half_a_second_away_is_found_and_used(mesh: Mesh) -> None:
    async with regions_apart(mesh, QUICK_PEERING, 500) as (_, us, _):
        async with ask(mesh.session, us.gateway.http_url) as response:
            assert await response.read() == b"".join(GOOD_STREAM)
        assert response.headers["x-nightside-region"] == EU.region
        assert counted(us.gateway, "peer_rtt_seconds", peer="eu-1") >= 0.5
        assert counted(us.gateway, "targets_lost_total", target="peer") == 0


async def test_a_cut_line_is_noticed_and_its_healing_too(mesh: Mesh) -> None:
    peering = replace(QUICK_PEERING, silence_max_ns=1300 * MS)
    async with regions_apart(mesh, peering, 20) as (wan, us, _):
        before = counted(us.gateway, "targets_lost_total", target="peer")
        wan.cut(US.region, EU.region)
        await until(lambda: counted(us.gateway, "targets_lost_total", target="peer") > before)
        assert usable_peers(us.gateway) == 0
        wan.heal(US.region, EU.region)
        await until(lambda: usable_peers(us.gateway) == 1)


async def test_a_peer_that_is_back_is_used_once_it_calls_however_long_we_would_leave_it_alone(mesh: Mesh) -> None:
    never = replace(QUICK_PEERING, reconnect_min_ns=3600 * SECOND, reconnect_max_ns=3600 * SECOND)
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    us.config = replace(us.config, peering=never)
    await mesh.start(us, eu)
    await eu.stop()
    await until(lambda: usable_peers(us.gateway) == 0)
    await until(lambda: us.gateway.control.heartbeat_receiver.heard()[0].is_broken)
    await eu.start()
    await until(lambda: usable_peers(us.gateway) == 1)


def available_at(region: Region, other: Region) -> int:
    state = region.gateway.core.peers.get(other.config.gateway_id)
    assert state is not None
    return sum(capacity.available for capacity in state.report.capacities) if state.report else 0


async def test_an_answer_delivered_in_full_is_completed_at_both_ends(mesh: Mesh) -> None:
    """The client closes before the response has ended, and the engine never ends it."""
    us, eu = await busy_us_and_free_eu(mesh)
    eu.engine.plays(stream_until(asyncio.Event(), GOOD_STREAM))
    whole = b"".join(GOOD_STREAM)
    for _ in range(5):
        async with ask(mesh.session, us.gateway.http_url) as response:
            assert await response.content.readexactly(len(whole)) == whole
            response.close()
        await until(lambda: us.gateway.driver.open_requests == eu.gateway.driver.open_requests == 0)
        await until(lambda: free_replicas(eu.gateway) == 1)
    assert counted(us.gateway, "requests_total", model="llama", outcome="completed") == 5
    assert counted(eu.gateway, "forwards_ended_total", model="llama", outcome="completed") == 5
    assert counted(us.gateway, "attempts_total", target="peer", result="completed") == 5
    assert counted(eu.gateway, "attempts_total", target="replica", result="completed") == 5
    assert counted(us.gateway, "output_tokens_total", model="llama", ran="forward", counted="usage") == 30
    assert counted(eu.gateway, "forwards_output_tokens_total", model="llama", counted="usage") == 30
