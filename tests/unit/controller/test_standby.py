from __future__ import annotations

import asyncio
import io
import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.standby import Standby, StandbyEnded, make_standby_app
from controller.store.store import StoreTaken, StoreUnavailable
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.operators import Operators
from tests.support.desks import LOG


async def test_it_waits_for_a_look_and_is_shown_once_it_has_to() -> None:
    shown: list[str] = []

    async def begin() -> None:
        shown.append(standby.reason)

    said = io.StringIO()
    standby = Standby(1_000_000, asyncio.Event(), make_logger(LoggingConfig(LogFormat.JSON), "ctl", said), begin)
    for error in (StoreTaken("ctl-1 has it"), StoreTaken("ctl-1 has it"), StoreUnavailable("gone")):
        await standby.wait(error)
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["reason"]) for line in lines] == [
        ("standby_waiting", "info", "ctl-1 has it"),
        ("leadership_attempt_failed", "error", "gone"),
    ]
    assert (shown, standby.reason) == (["ctl-1 has it"], "gone")


async def test_one_that_is_told_to_stop_ends() -> None:
    stop = asyncio.Event()

    async def begin() -> None:
        stop.set()

    with pytest.raises(StandbyEnded):
        await Standby(3_600_000_000_000, stop, LOG, begin).wait(StoreTaken("ctl-1 has it"))


async def test_operators_see_that_it_lives_and_who_leads_and_nothing_takes_an_order() -> None:
    app = make_standby_app(lambda: "ctl-1 has it", lambda: b"series 1\n", "text/plain", Operators("secret"), None)
    key = {"authorization": "Bearer secret"}
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/health")).status == 200
        ready = await client.get("/ready")
        assert (ready.status, await ready.json()) == (503, {"status": "standing by", "reason": "ctl-1 has it"})
        assert (await client.get("/metrics")).status == 401
        assert await (await client.get("/metrics", headers=key)).read() == b"series 1\n"
        order = await client.post("/admin/orders", json={}, headers=key)
        assert (order.status, "ctl-1 has it" in await order.text()) == (503, True)
        assert (await client.get("/admin/state", headers=key)).status == 503


async def test_its_page_is_there_and_is_told_who_leads() -> None:
    app = make_standby_app(lambda: "ctl-1 has it", lambda: b"", "text/plain", Operators("secret"), None)
    async with TestClient(TestServer(app)) as client:
        assert "<title>Nightside" in await (await client.get("/")).text()
        assert (await client.get("/admin/events")).status == 401
        events = await client.get("/admin/events", headers={"authorization": "Bearer secret"})
        assert (events.status, "ctl-1 has it" in await events.text()) == (503, True)
