"""Drain: peers are told, new requests are refused with a reason, and running requests are finished."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.app.gateway import serve_gateway
from mesh.values import Address
from tests.fakes.engine import GOOD_STREAM, stream_until
from tests.support.core import EU, SECOND, US
from tests.support.gateways import ask, counted, free_replicas, until, usable_peers
from tests.support.programs import nightside
from tests.support.regions import Mesh, Region, busy_us_and_free_eu


def believes_it_accepts(region: Region, other: Region) -> bool:
    state = region.gateway.core.peers.get(other.config.gateway_id)
    return state is not None and state.report is not None and state.report.accepting


async def test_peers_hear_of_it_while_what_runs_goes_on(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    go_on = asyncio.Event()
    eu.engine.plays(stream_until(go_on, (GOOD_STREAM[0],), GOOD_STREAM[1:]))
    async with ask(mesh.session, us.gateway.http_url) as forwarded, asyncio.TaskGroup() as tasks:
        assert await forwarded.content.readany() == GOOD_STREAM[0]
        draining = tasks.create_task(eu.gateway.drain(60))
        await until(lambda: not believes_it_accepts(us, eu))
        assert usable_peers(us.gateway) == 0
        assert counted(us.gateway, "targets_lost_total", target="peer") == 0, "told, not found out"
        assert not draining.done()
        go_on.set()
        assert await forwarded.content.read() == b"".join(GOOD_STREAM[1:])
    assert draining.result() is True


async def test_new_work_is_refused_with_a_reason_and_the_connection_closed(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    go_on = asyncio.Event()
    us.engine.plays(stream_until(go_on, (GOOD_STREAM[0],), GOOD_STREAM[1:]))
    async with ask(mesh.session, us.gateway.http_url) as running, asyncio.TaskGroup() as tasks:
        await running.content.readany()
        tasks.create_task(us.gateway.drain(60))
        await until(lambda: us.gateway.core.draining)
        async with ask(mesh.session, us.gateway.http_url) as late:
            assert late.status == 503
            assert (await late.json())["error"]["code"] == "draining"
            assert (late.headers["retry-after"], late.headers["connection"]) == ("1", "close")
        async with mesh.session.get(f"{us.gateway.admin_url}/ready") as ready:
            assert (ready.status, (await ready.json())["reason"]) == (503, "draining")
        go_on.set()
        assert await running.content.read() == b"".join(GOOD_STREAM[1:])


async def test_even_an_idle_gateway_says_goodbye_before_it_goes(mesh: Mesh) -> None:
    """The last heartbeat may be delayed: the core sends no two within its interval."""
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    slow = replace(eu.config.core.observation, publish_interval_ns=SECOND // 2, keep_alive_ns=60 * SECOND)
    eu.config = replace(eu.config, core=replace(eu.config.core, observation=slow))
    await mesh.start(us, eu)
    assert believes_it_accepts(us, eu)
    eu.engine.waiting = 1
    await until(lambda: free_replicas(eu.gateway) == 0)
    assert await eu.gateway.drain(60) is True
    await eu.stop()
    await until(lambda: usable_peers(us.gateway) == 0)
    assert not believes_it_accepts(us, eu)


async def test_a_drain_that_has_no_time_gives_up(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    us.engine.plays(stream_until(asyncio.Event(), (GOOD_STREAM[0],)))
    async with ask(mesh.session, us.gateway.http_url) as running:
        await running.content.readany()
        assert await us.gateway.drain(0.01) is False


async def test_a_gateway_without_peers_needs_nobody_to_be_told(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    async with serve_gateway(us.config) as gateway:
        assert await gateway.drain(60) is True
        assert isinstance(gateway.http_address, Address)


async def test_an_operator_drains_it_and_the_process_stays_until_it_is_ended(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    go_on = asyncio.Event()
    eu.engine.plays(stream_until(go_on, (GOOD_STREAM[0],), GOOD_STREAM[1:]))
    async with ask(mesh.session, us.gateway.http_url) as forwarded:
        assert await forwarded.content.readany() == GOOD_STREAM[0]
        status, out, err = await nightside("gateway", "drain", "--admin", eu.gateway.admin_url)
        assert (status, out, err) == (0, "draining: 1 requests are left\n", "")
        await until(lambda: not believes_it_accepts(us, eu))
        async with ask(mesh.session, eu.gateway.http_url) as late:
            assert (late.status, (await late.json())["error"]["code"]) == (503, "draining")
        go_on.set()
        assert await forwarded.content.read() == b"".join(GOOD_STREAM[1:])
    async with mesh.session.get(f"{eu.gateway.admin_url}/admin/state") as response:
        assert (await response.json())["draining"] is True
    status, out, _ = await nightside("gateway", "undrain", "--admin", eu.gateway.admin_url)
    assert (status, out) == (0, "undrained: it takes requests again\n")
    await until(lambda: believes_it_accepts(us, eu))
    assert counted(eu.gateway, "draining") == 0
    async with ask(mesh.session, eu.gateway.http_url) as again:
        assert await again.read() == b"".join(GOOD_STREAM)
    assert await eu.gateway.drain(60), "an end after that is as any other"
    status, _, err = await nightside("gateway", "undrain", "--admin", eu.gateway.admin_url)
    assert (status, "this process is shutting down" in err) == (1, True)
