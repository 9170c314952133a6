"""A host's watch hands in what its cloud announces until a gateway accepts it, and what is called off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from gateway.features.leaving.host_watch import HostWatch
from gateway.features.leaving.metadata import HostEnd, MetadataFault
from mesh.admin_client import Admin, AdminFault
from tests.support.gateways import until
from tests.support.listening import listening, serving_http

NOW_S = datetime.fromisoformat("2026-03-01T12:00:00Z").timestamp()


@dataclass
class Announced:
    """Metadata service of which a test says what it announces."""

    end: HostEnd | None = None
    fault: str = ""
    is_silent: bool = False
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    """A look waits for an answer."""

    async def look(self, now_s: float) -> HostEnd | None:
        if self.is_silent:
            self.silent.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.fault:
            raise MetadataFault(self.fault)
        return self.end


@dataclass
class AdminDesk:
    """Admin address of a gateway that serves some replicas."""

    serves: set[str]
    status: int = 200
    received: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if request.headers.get("authorization") != "Bearer t0ken":
            return web.json_response({"error": "show an operator's token"}, status=401)
        if name not in self.serves:
            return web.json_response({"error": f"there is no replica {name} here"}, status=404)
        if self.status != 200:
            return web.json_response({"error": "not now"}, status=self.status)
        body = await request.json() if request.can_read_body else None
        self.received.append((request.method, name, body))
        return web.json_response({})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AdminDesk]:
        app = web.Application()
        app.router.add_route("*", "/admin/replicas/{id}/leave-by", self._answer)
        async with serving_http(web.AppRunner(app)) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self


class Watched:
    """Watch of a host with two replicas, whose lines are kept."""

    def __init__(self, *urls: str, token: str = "t0ken") -> None:
        self.told = Announced()
        self.now_s = NOW_S
        self.lines: list[str] = []
        self.watch = HostWatch(
            self.told,
            [Admin(url, token) for url in urls],
            ["r0", "r1"],
            lead_s=120,
            wall_s=lambda: self.now_s,
            say=self.lines.append,
        )

    async def look(self) -> None:
        await self.watch.look()
        await self.watch.hand_in()


@pytest.fixture
async def gateway() -> AsyncIterator[AdminDesk]:
    async with AdminDesk({"r0", "r1"}).serving() as desk:
        yield desk


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW_S + seconds, UTC).isoformat(timespec="milliseconds")


async def test_an_end_is_announced_for_each_replica_and_again_at_each_look(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    await watched.look()
    assert gateway.received == []
    watched.told.end = HostEnd(NOW_S + 90, "terminate")
    for _ in range(2):
        await watched.look()
    assert sorted(gateway.received[:2]) == sorted(gateway.received[2:])
    assert sorted(gateway.received[2:]) == [("POST", "r0", {"at": at(90)}), ("POST", "r1", {"at": at(90)})]
    assert watched.lines.count(f"r0 leaves by {at(90)}") == 1


async def test_one_that_is_far_away_is_announced_later(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 900, "Reboot")
    await watched.look()
    assert gateway.received == []
    watched.now_s += 780
    await watched.look()
    assert len(gateway.received) == 2


async def test_what_is_called_off_is_withdrawn_once(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "Preempt")
    await watched.look()
    watched.told.end = None
    for _ in range(2):
        await watched.look()
    assert sorted(gateway.received[2:]) == [("DELETE", "r0", None), ("DELETE", "r1", None)]


async def test_a_service_that_cannot_be_asked_withdraws_nothing(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "Preempt")
    await watched.look()
    watched.told.fault = "no answer"
    for _ in range(3):
        await watched.look()
    assert {method for method, _, _ in gateway.received} == {"POST"}
    assert watched.lines.count("no answer") == 1


async def test_what_it_told_before_is_handed_in_all_the_same(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "Preempt")
    gateway.status = 500
    await watched.look()
    watched.told.fault, gateway.status = "no answer", 200
    await watched.look()
    assert sorted(gateway.received) == [("POST", "r0", {"at": at(90)}), ("POST", "r1", {"at": at(90)})]


async def test_one_that_never_answers_delays_no_announcement(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "Preempt")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watched.watch.run(0.01))
        await until(lambda: len(gateway.received) >= 2)
        watched.told.is_silent = True
        await watched.told.silent.wait()
        received = len(gateway.received)
        await until(lambda: len(gateway.received) >= received + 4)
        running.cancel()


async def test_what_is_new_is_handed_in_at_once(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "Preempt")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watched.watch.run(3600))
        await until(lambda: len(gateway.received) == 2)
        running.cancel()


async def test_an_end_that_is_put_off_beyond_the_lead_is_withdrawn_until_then(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "Reboot")
    await watched.look()
    watched.told.end = HostEnd(NOW_S + 900, "Reboot")
    for _ in range(2):
        await watched.look()
    assert sorted(gateway.received[2:]) == [("DELETE", "r0", None), ("DELETE", "r1", None)]
    watched.now_s += 800
    await watched.look()
    assert sorted(gateway.received[4:]) == [("POST", "r0", {"at": at(900)}), ("POST", "r1", {"at": at(900)})]


@asynccontextmanager
async def silent_gateway(gone: list[str]) -> AsyncIterator[str]:
    """URL of what accepts connections and never answers. `gone` gets a line for each caller that gave up."""

    async def hold(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.append("a caller gave up")

    async with listening(hold) as port:
        yield f"http://127.0.0.1:{port}"


async def test_a_gateway_that_never_answers_delays_neither_the_others_nor_other_replicas(gateway: AdminDesk) -> None:
    gateway.serves = {"r1"}
    gone: list[str] = []
    async with silent_gateway(gone) as url, asyncio.TaskGroup() as tasks:
        watched = Watched(url, gateway.url)
        watched.told.end = HostEnd(NOW_S + 90, "terminate")
        looking = tasks.create_task(watched.look())
        await until(lambda: f"r1 leaves by {at(90)}" in watched.lines)
        assert not looking.done(), "r0 is still asked for at the silent gateway"
        assert len(gone) <= 1, "only the call for r1 has ended"
        looking.cancel()
    assert gateway.received == [("POST", "r1", {"at": at(90)})]


async def test_a_call_has_a_time_of_its_own() -> None:
    gone: list[str] = []
    async with silent_gateway(gone) as url:
        with pytest.raises(AdminFault, match="no answer within 0 s"):
            await Admin(url, timeout_s=0.01).answer("GET", "/ready")


async def test_a_gateway_that_refuses_for_now_is_asked_until_it_accepts(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "terminate")
    gateway.status = 409
    await watched.look()
    assert gateway.received == []
    assert any("not now" in line for line in watched.lines)
    gateway.status = 200
    await watched.look()
    assert len(gateway.received) == 2


async def test_of_several_gateways_the_one_that_serves_the_replica_takes_it(gateway: AdminDesk) -> None:
    gateway.serves = {"r0"}
    async with AdminDesk({"r1"}).serving() as other:
        watched = Watched("http://127.0.0.1:1", gateway.url, other.url)
        watched.told.end = HostEnd(NOW_S + 90, "terminate")
        await watched.look()
        assert [name for _, name, _ in gateway.received] == ["r0"]
        assert [name for _, name, _ in other.received] == ["r1"]


async def test_a_replica_that_no_gateway_knows_is_told(gateway: AdminDesk) -> None:
    gateway.serves = {"r0"}
    watched = Watched(gateway.url)
    watched.told.end = HostEnd(NOW_S + 90, "terminate")
    await watched.look()
    assert any("there is no replica r1 here" in line for line in watched.lines)


async def test_so_is_a_wrong_token(gateway: AdminDesk) -> None:
    watched = Watched(gateway.url, token="wrong")
    watched.told.end = HostEnd(NOW_S + 90, "terminate")
    await watched.look()
    assert any("show an operator's token" in line for line in watched.lines)
