"""Engines that end after a notice, behind whole gateways: their work completes, or goes on elsewhere before that."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from msgspec.structs import replace

from gateway.app.gateway import serve_gateway
from gateway.config.sections import GatewayConfig
from gateway.core.features.leaving.config import LeavingConfig
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import Standing
from mesh.clock import Clock
from tests.support.core import MS, SECOND, US
from tests.support.gateways import ask, counted, free_replicas, until
from tests.support.listening import serving_http
from tests.support.programs import nightside, started
from tests.support.regions import Mesh, Region
from tests.support.served import QUICK, Ports, Served, served

TOKENS = 60
STEADY = dataclasses.replace(QUICK, time_scale=8.0)
"""Config of an engine that writes for some seconds, so that answers are still being written when a notice ends."""
PROMPTS = [f"tell me about {number}" for number in range(6)]


def with_margin(config: GatewayConfig) -> GatewayConfig:
    return replace(config, core=replace(config.core, leaving=LeavingConfig(margin_ns=700 * MS)))


@asynccontextmanager
async def behind_two(tmp_path: Path, ports: Ports) -> AsyncIterator[Served]:
    async with served(tmp_path, ports, engine=STEADY, engines=2, change=with_margin) as up:
        yield up


async def answer(session: aiohttp.ClientSession, up: Served, prompt: str) -> tuple[str, bytes]:
    """Id of the request, and the whole answer without the comments that tell of moves."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS}
    async with ask(session, up.url, **body) as response:
        assert response.status == 200
        whole = await response.read()
    events = whole.split(b"\n\n")
    return response.headers["x-request-id"], b"\n\n".join(each for each in events if not each.startswith(b":"))


async def explained(session: aiohttp.ClientSession, up: Served, request_id: str) -> str:
    async with session.get(f"{up.gateway.admin_url}/admin/explain/{request_id}") as response:
        return " ".join((await response.json())["words"])


async def leave_by(session: aiohttp.ClientSession, admin_url: str, name: str, **body: object) -> tuple[int, Any]:
    async with session.post(f"{admin_url}/admin/replicas/{name}/leave-by", json=body) as response:
        return response.status, await response.json()


async def state_of(session: aiohttp.ClientSession, admin_url: str) -> dict[str, Any]:
    async with session.get(f"{admin_url}/admin/state") as response:
        told: dict[str, Any] = await response.json()
        return told


def said(whole: bytes) -> list[str]:
    """Events of an answer without what differs between any two: its id and its time."""
    found = []
    for line in whole.split(b"\n\n"):
        if not line.startswith(b"data: {"):
            found.append(line.decode())
            continue
        told = json.loads(line[6:])
        found.append(json.dumps({key: told[key] for key in told if key not in ("id", "created")}))
    return found


async def test_streams_of_an_engine_that_is_gone_after_its_notice_are_as_if_undisturbed(
    tmp_path: Path, unused_tcp_port_factory: Ports
) -> None:
    async with behind_two(tmp_path, unused_tcp_port_factory) as up, aiohttp.ClientSession() as session:
        async with asyncio.TaskGroup() as tasks:
            undisturbed = [tasks.create_task(answer(session, up, prompt)) for prompt in PROMPTS]
        async with asyncio.TaskGroup() as tasks:
            disturbed = [tasks.create_task(answer(session, up, prompt)) for prompt in PROMPTS]
            await up.runs(len(PROMPTS))
            spot = up.gateway.core.replicas.at(0)
            assert spot.in_flight
            status, told = await leave_by(session, up.gateway.admin_url, spot.spec.replica_id, seconds=2)
            assert (status, [each["replica"] for each in told["leaving"]]) == (200, [spot.spec.replica_id])
            assert spot.standing is Standing.LEAVING
            await until(lambda: counted(up.gateway, "replicas_overdue") == 1)
            up.engines[0].die("the host is gone")
        assert [said(each.result()[1]) for each in disturbed] == [said(each.result()[1]) for each in undisturbed]
        assert counted(up.gateway, "moved_attempts_total", service_class="interactive") >= 1
        words = [await explained(session, up, each.result()[0]) for each in disturbed]
        assert any("it ended as taken_back: its engine leaves within" in each for each in words)
        assert counted(up.gateway, "answers_broken_total", target="replica", result="failed", continuable="yes") == 0


async def test_operators_see_it_and_may_withdraw_it(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    admin = us.gateway.admin_url
    status, out, err = await nightside("replica", "leave-by", "us-1-r0", "30s", "--admin", admin)
    assert (status, err) == (0, "")
    assert out.startswith("us-1-r0 leaves by 20")
    assert free_replicas(us.gateway) == 0
    state = await state_of(mesh.session, admin)
    (replica,) = state["replicas"]
    assert replica["standing"] == "leaving"
    (leaving,) = state["leaving"]["replicas"]
    assert (leaving["replica"], leaving["is_overdue"], leaving["in_flight"]) == ("us-1-r0", False, 0)
    async with mesh.session.get(f"{admin}/ready") as ready:
        assert "us-1-r0 by 20" in (await ready.json())["leaving"]
    assert counted(us.gateway, "replica_state", replica="us-1-r0", state="leaving") == 1
    status, out, _ = await nightside("gateway", "status", "--admin", admin)
    assert "us-1-r0" in out
    assert "Leaves" in out
    status, out, _ = await nightside("replica", "withdraw", "us-1-r0", "--admin", admin)
    assert (status, out) == (0, "us-1-r0 stays\n")
    await until(lambda: free_replicas(us.gateway) == 1)
    status, out, _ = await nightside("replica", "withdraw", "us-1-r0", "--admin", admin)
    assert (status, out) == (0, "us-1-r0 was not to leave\n")


async def test_an_id_that_is_refused_keeps_no_other_from_being_asked_for(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    options = ("--admin", us.gateway.admin_url)
    for command, when, said in (("leave-by", ("30s",), "us-1-r0 leaves by 20"), ("withdraw", (), "us-1-r0 stays")):
        status, out, err = await nightside("replica", command, "nobody", "us-1-r0", "nobody-else", *when, *options)
        assert (status, out.startswith(said)) == (1, True), out
        told = ("nobody", "nobody-else")
        assert err == "".join(f"Error: {name}: there is no replica {name} here\n" for name in told)


async def test_one_that_lives_on_is_told_as_a_problem(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    await leave_by(mesh.session, us.gateway.admin_url, "us-1-r0", seconds=0.01)
    await until(lambda: counted(us.gateway, "replicas_overdue") == 1)
    _, out, _ = await nightside("gateway", "status", "--admin", us.gateway.admin_url)
    assert "replica us-1-r0 was to leave by" in out
    assert free_replicas(us.gateway) == 0


async def refused(mesh: Mesh, us: Region, name: str = "us-1-r0", **body: object) -> tuple[int, str]:
    status, told = await leave_by(mesh.session, us.gateway.admin_url, name, **body)
    return status, told["error"]


async def test_what_is_no_announcement_is_refused_with_the_reason(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    assert await refused(mesh, us, "nobody", seconds=30) == (404, "there is no replica nobody here")
    assert await refused(mesh, us) == (400, "give one of `seconds` and `at`")
    assert await refused(mesh, us, seconds=3, at="2026-03-01T12:00:00Z") == (400, "give one of `seconds` and `at`")
    assert await refused(mesh, us, seconds=0) == (400, "the time has passed")
    assert await refused(mesh, us, at="2020-03-01T12:00:00Z") == (400, "the time has passed")
    assert await refused(mesh, us, seconds=1e9) == (400, "the time is more than 24 hours away")
    for body in ({"seconds": "soon"}, {"at": "2026-03-01T12:00:00"}, {"at": "soon"}, {"minutes": 1}):
        assert (await refused(mesh, us, **body))[0] == 400
    url = f"{us.gateway.admin_url}/admin/replicas/us-1-r0/leave-by"
    async with mesh.session.post(url, data='{"seconds": 3}', headers={"content-type": "text/plain"}) as response:
        assert response.status == 415
    async with mesh.session.delete(f"{us.gateway.admin_url}/admin/replicas/nobody/leave-by") as response:
        assert response.status == 404
    assert free_replicas(us.gateway) == 1


async def test_a_replica_that_another_gateway_serves_is_announced_there(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    us.gateway.driver.submit(AssignmentApplied(us.gateway.core.assignment_version + 1, (), ()))
    status, why = await refused(mesh, us, seconds=3)
    assert (status, "served by another gateway" in why) == (409, True)


async def test_the_id_of_an_engine_names_all_of_its_ranks(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    (engine,) = us.config.replicas
    async with serve_gateway(replace(us.config, replicas=replace(engine, ranks=2).by_rank())) as gateway:
        status, told = await leave_by(mesh.session, gateway.admin_url, "us-1-r0", seconds=30)
        assert (status, [each["replica"] for each in told["leaving"]]) == (200, ["us-1-r0@0", "us-1-r0@1"])
        async with mesh.session.delete(f"{gateway.admin_url}/admin/replicas/us-1-r0@1/leave-by") as response:
            assert await response.json() == {"withdrawn": ["us-1-r0@1"]}


async def test_an_orchestrators_end_is_known_from_the_first_assignment_on(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    (engine,) = us.config.replicas
    ending = replace(engine, leaves_at_s=Clock.wall_ns() / SECOND + 3600)
    async with serve_gateway(replace(us.config, replicas=(ending,))) as gateway:
        assert gateway.core.replicas.at(0).leave_by_ns is not None
        (leaving,) = (await state_of(mesh.session, gateway.admin_url))["leaving"]["replicas"]
        assert (leaving["replica"], leaving["by"]) == ("us-1-r0", "kubernetes")


async def lines_until(last: bytes, output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a program up to this one."""
    while (line := await output.readline()) not in (last, b""):
        yield line


async def test_the_watch_of_a_host_hands_in_what_its_cloud_announces_and_calls_off(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, admin_token="s3cret")
    await mesh.start(us)
    token_file = mesh._folder / "operator.token"
    token_file.write_text("s3cret\n")
    token_file.chmod(0o600)
    preempted = "FALSE"

    async def tell(request: web.Request) -> web.Response:
        return web.Response(text=preempted if request.path.endswith("preempted") else "NONE")

    app = web.Application()
    app.router.add_get("/computeMetadata/v1/instance/{what}", tell)
    async with serving_http(web.AppRunner(app)) as port:
        options = ("--provider", "gcp", "--gateway", us.gateway.admin_url, "--replica", "us-1-r0", "--interval", "20ms")
        where = ("--metadata-url", f"http://127.0.0.1:{port}", "--token-file", str(token_file))
        async with started("replica", "watch-host", *options, *where) as process:
            preempted = "TRUE"
            await until(
                lambda: us.gateway.core.replicas.at(0).leave_by_ns is not None or process.returncode is not None
            )
            assert us.gateway.core.replicas.at(0).standing is Standing.LEAVING
            preempted = "FALSE"
            assert process.stderr is not None
            said = [line async for line in lines_until(b"us-1-r0 stays\n", process.stderr)]
    assert any(line.startswith(b"preempted: this host ends 20") for line in said)
    assert free_replicas(us.gateway) == 1
