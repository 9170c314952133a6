"""The operator's stop for all forwarding, on whole gateways."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config.sections import StateConfig
from tests.fakes.engine import GOOD_STREAM, hang, stream, stream_until
from tests.support.core import EU, US
from tests.support.gateways import ask, counted, until, usable_peers
from tests.support.programs import nightside
from tests.support.regions import Mesh, Region, busy_us_and_free_eu


async def answered(mesh: Mesh, region: Region) -> str:
    """Region in which the request ran."""
    async with ask(mesh.session, region.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
        return response.headers["x-nightside-region"]


async def order(mesh: Mesh, region: Region, **body: object) -> dict[str, object]:
    async with mesh.session.post(f"{region.gateway.admin_url}/admin/lockdown", json=body) as response:
        assert response.status == 200
        told: dict[str, object] = await response.json()
        return told


async def test_nothing_leaves_until_it_is_released_and_local_work_goes_on(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    assert await answered(mesh, us) == EU.region
    await order(mesh, us, active=True, reason="drill")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(answered(mesh, us))
        await until(lambda: us.gateway.driver.open_requests == 1)
        assert counted(us.gateway, "lockdown") == 1
        async with mesh.session.get(f"{us.gateway.admin_url}/ready") as response:
            assert (response.status, await response.json()) == (200, {"status": "ready", "lockdown": "drill"})
        async with mesh.session.get(f"{us.gateway.admin_url}/admin/state") as response:
            state = await response.json()
            assert state["lockdown"] is True
            assert (state["lockdown_order"]["active"], state["lockdown_order"]["reason"]) == (True, "drill")
        await us.become_free()
    assert waiting.result() == US.region
    await us.become_busy()
    await order(mesh, us, active=False)
    assert await answered(mesh, us) == EU.region
    assert counted(us.gateway, "lockdown") == 0
    assert len(eu.engine.received) == 2


async def test_nothing_is_taken_in_either_and_peers_are_told(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    await order(mesh, eu, active=True)
    await until(lambda: usable_peers(us.gateway) == 0)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(answered(mesh, us))
        await until(lambda: us.gateway.driver.open_requests == 1)
        assert await answered(mesh, eu) == EU.region
        await us.become_free()
    assert waiting.result() == US.region


async def test_a_forward_without_a_token_comes_back_at_once(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    eu.engine.plays(hang)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(answered(mesh, us))
        await eu.engine.arrived.reaches(1)
        await order(mesh, us, active=True)
        await eu.engine.aborted.reaches(1)
        await us.become_free()
    assert waiting.result() == US.region


@pytest.mark.parametrize("cut", [False, True])
async def test_a_stream_across_regions_ends_only_if_it_is_to_be_cut(mesh: Mesh, cut: bool) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    go_on = asyncio.Event()
    eu.engine.plays(stream_until(go_on, (GOOD_STREAM[0],), GOOD_STREAM[1:]), stream(*GOOD_STREAM))
    async with ask(mesh.session, us.gateway.http_url) as response:
        await response.content.readany()
        await order(mesh, us, active=True, cut=cut)
        if cut:
            await eu.engine.aborted.reaches(1)
        go_on.set()
        rest = await response.content.read()
    assert (b"engine_failed_midstream" in rest) is cut
    assert (rest == b"".join(GOOD_STREAM[1:])) is not cut


async def test_the_command_orders_it_and_it_outlives_a_restart(mesh: Mesh, tmp_path: Path) -> None:
    us, _ = await busy_us_and_free_eu(mesh, state=StateConfig(folder=tmp_path / "state"))
    status, out, err = await nightside("gateway", "lockdown", "--admin", us.gateway.admin_url, "--reason", "drill")
    assert (status, out, err) == (0, "locked down: nothing is forwarded\n", "")
    await us.stop()
    await us.start()
    assert us.gateway.core.forwarding_stop is not None
    async with mesh.session.get(f"{us.gateway.admin_url}/ready") as response:
        assert await response.json() == {"status": "ready", "lockdown": "drill"}
    status, out, _ = await nightside("gateway", "lockdown", "--admin", us.gateway.admin_url, "--release")
    assert (status, out) == (0, "released: requests may be forwarded again\n")
    await us.stop()
    await us.start()
    assert us.gateway.core.forwarding_stop is None
    await until(lambda: usable_peers(us.gateway) == 1)
    await us.become_busy()
    assert await answered(mesh, us) == EU.region


async def test_what_a_restart_would_forget_is_told_with_1(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    status, out, err = await nightside("gateway", "lockdown", "--admin", us.gateway.admin_url)
    assert (status, out) == (1, "locked down: nothing is forwarded\n")
    assert err == ("Error: this is in force now, but will be forgotten in a restart: no state.folder is configured\n")
    assert us.gateway.core.forwarding_stop is not None


async def test_the_command_used_wrongly_or_without_a_gateway_changes_nothing(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, admin_token="s3cret")
    await mesh.start(us)
    assert (await nightside("gateway", "lockdown", "--release", "--cut"))[0] == 2
    assert (await nightside("gateway", "lockdown", "--admin", "http://127.0.0.1:1"))[0] == 1
    status, _, err = await nightside("gateway", "lockdown", "--admin", us.gateway.admin_url)
    assert status == 1
    assert "show an operator's token" in err
    assert us.gateway.core.forwarding_stop is None


async def test_an_order_that_is_not_one_is_refused(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    url = f"{us.gateway.admin_url}/admin/lockdown"
    async with mesh.session.post(url, data='{"active": true}', headers={"content-type": "text/plain"}) as response:
        assert response.status == 415, "no page in a browser may send this unasked"
    for body in (b"{}", b"nonsense", b'{"active": "yes"}', b'{"active": true, "else": 1}'):
        async with mesh.session.post(url, data=body, headers={"content-type": "application/json"}) as response:
            assert response.status == 400
    async with mesh.session.get(url) as response:
        assert response.status == 405
    assert us.gateway.core.forwarding_stop is None
