"""`nightside gateway status` on running gateways, and a gateway's log and metrics while it drains."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.app.gateway import serve_gateway
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.fakes.engine import GOOD_STREAM, answer, stream_until
from tests.support.core import EU, MODEL, US
from tests.support.gateways import ask, counted, free_replicas, region_config, until, write_policy
from tests.support.programs import ROOT, nightside
from tests.support.regions import Mesh, Region


async def status(region: Region, *more: str) -> tuple[int | None, str, str]:
    return await nightside("gateway", "status", "--admin", region.gateway.admin_url, *more)


async def test_a_mesh_that_is_well_is_shown_and_a_dead_engine_is_named(mesh: Mesh) -> None:
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    await mesh.start(us, eu)
    code, out, _ = await status(us, "--wait", "60")
    assert code == 0, out
    assert "gateway us-1 in us-east-1 (US): ready" in out
    rows = [line.split() for line in out.splitlines()]
    assert next(row for row in rows if row[:1] == ["us-1-r0"])[1:4] == ["us-east-1", MODEL, "available"]
    assert next(row for row in rows if row[:1] == ["eu-1"])[1:3] == ["eu-west-1", "available"]
    us.engine.probe_script = answer(500)
    await until(lambda: not next(iter(us.gateway.core.replicas)).healthy)
    code, out, _ = await status(us)
    assert code == 1
    assert out.count("problem: ") == 1
    assert "problem: no replica can be used: us-1-r0 is " in out


async def test_json_holds_all_that_the_gateway_says_and_what_is_wrong(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    code, out, _ = await status(us, "--json", "--wait", "60")
    said = json.loads(out)
    assert (code, said["wrong"], said["gateway"], len(said["replicas"])) == (0, [], "us-1", 1)
    async with mesh.session.get(f"{us.gateway.admin_url}/admin/state") as response:
        assert said.keys() == {*(await response.json()), "wrong"}


async def test_draining_is_not_ready_and_begins_and_ends_with_a_line(tmp_path: Path, mesh: Mesh) -> None:
    us, log = await mesh.region("us-1", US), io.StringIO()
    logger = make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", log)
    go_on = asyncio.Event()
    us.engine.plays(stream_until(go_on, (GOOD_STREAM[0],), GOOD_STREAM[1:]))
    async with serve_gateway(us.config, log=logger) as us.gateway:
        await until(lambda: free_replicas(us.gateway) == 1)
        async with ask(mesh.session, us.gateway.http_url) as running, asyncio.TaskGroup() as tasks:
            await running.content.readany()
            assert counted(us.gateway, "ready") == 1
            tasks.create_task(us.gateway.drain(60))
            await until(lambda: us.gateway.core.draining)
            code, out, _ = await status(us)
            assert (code, "not ready, draining" in out) == (3, True)
            us.gateway.driver.tell_observers()
            assert (counted(us.gateway, "draining"), counted(us.gateway, "ready")) == (1, 0)
            go_on.set()
            await running.content.read()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    began, ended = (line for line in lines if line["event"].startswith("drain"))
    assert (began["event"], began["requests"], began["level"]) == ("drain_started", 1, "info")
    assert (ended["event"], ended["level"]) == ("drain_completed", "info")


async def test_a_drain_that_ends_early_says_what_it_cuts_off(mesh: Mesh) -> None:
    us, log = await mesh.region("us-1", US), io.StringIO()
    us.engine.plays(stream_until(asyncio.Event(), (GOOD_STREAM[0],)))
    logger = make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", log)
    async with serve_gateway(us.config, log=logger) as us.gateway:
        await until(lambda: free_replicas(us.gateway) == 1)
        async with ask(mesh.session, us.gateway.http_url) as running:
            await running.content.readany()
            assert await us.gateway.drain(0.01) is False
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (ended,) = (line for line in lines if line["event"] == "drain_timed_out")
    assert (ended["event"], ended["requests"], ended["level"]) == (
        "drain_timed_out",
        1,
        "warning",
    )


@pytest.mark.parametrize("end", ["drain", "leave"])
async def test_a_drain_that_is_cancelled_says_so_and_not_that_time_ran_out(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    async def never_empty(_: float) -> bool:
        return await asyncio.Event().wait()

    us, log = await mesh.region("us-1", US), io.StringIO()
    us.engine.plays(stream_until(asyncio.Event(), (GOOD_STREAM[0],)))
    logger = make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", log)
    async with serve_gateway(us.config, log=logger) as us.gateway:
        monkeypatch.setattr(us.gateway.estate, "until_empty", never_empty)  # the real one tells another process
        await until(lambda: free_replicas(us.gateway) == 1)
        async with ask(mesh.session, us.gateway.http_url) as running, asyncio.TaskGroup() as tasks:
            await running.content.readany()
            ending = tasks.create_task(getattr(us.gateway, end)(60))
            await until(lambda: "drain_started" in log.getvalue())
            ending.cancel()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    _, ended = (line for line in lines if "drain" in line["event"])
    assert ended["event"] == {"drain": "drain_interrupted", "leave": "takeover_drain_interrupted"}[end]
    assert (ended["requests"], ended["level"]) == (1, "warning")


async def test_who_cannot_be_asked_is_told_apart_from_who_is_unwell(unused_tcp_port: int) -> None:
    code, _, err = await nightside("gateway", "status", "--admin", f"http://127.0.0.1:{unused_tcp_port}")
    assert (code, "cannot be reached" in err) == (4, True)


async def test_without_the_token_it_is_not_asked(tmp_path: Path) -> None:
    config = region_config("us-1", US, [], policy_file=write_policy(tmp_path, US))
    async with serve_gateway(replace(config, admin_token="secret")) as gateway:
        code, _, err = await nightside("gateway", "status", "--admin", gateway.admin_url)
        assert (code, "token" in err) == (4, True)


async def test_it_waits_until_all_is_well_and_no_longer_than_it_may(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    us.engine.probe_script = answer(500)
    async with serve_gateway(us.config) as us.gateway, asyncio.TaskGroup() as tasks:
        code, _, _ = await status(us, "--wait", "0.1")
        assert code == 1
        waiting = tasks.create_task(status(us, "--wait", "60"))
        us.engine.probe_script = None
    assert waiting.result()[0] == 0


async def test_a_token_file_that_is_not_there_is_a_command_used_wrongly(tmp_path: Path) -> None:
    code, _, err = await nightside("gateway", "status", "--token-file", tmp_path / "none")
    assert (code, "none cannot be read" in err) == (2, True)


async def test_the_command_loads_nothing_that_serves() -> None:
    script = "import sys, gateway.app.commands, gateway.app.status_cli; print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=-1, cwd=ROOT)
    loaded = set((await process.communicate())[0].decode().split())
    assert "gateway.features.status_views" in loaded
    serving = {"gateway.app.gateway", "gateway.core.gateway_core", "gateway.features.catalogue"}
    assert loaded & {*serving, "cryptography", "grpc", "numpy", "prometheus_client", "pydantic", "structlog"} == set()
