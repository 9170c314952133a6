"""Announcements of several sources in a gateway's core, without servers of clients and engines."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.app.observed_core import ObservedCore
from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import ReplicaId, Standing
from gateway.features.leaving.extension import LeavingExtension
from gateway.features.leaving.status import LeavingReplica
from mesh.admin_server import OPERATOR
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.operators import Operator
from mesh.operators_config import Role
from tests.support.clock import StillClock
from tests.support.core import MS, SECOND, US, replica_spec
from tests.support.gateways import region_config, write_policy
from tests.support.listening import serving_http

START_NS = 1_772_366_310 * SECOND
"""Wall time of the start."""


@web.middleware
async def name_operator(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take the caller for the operator of this name."""
    request[OPERATOR] = Operator(request.headers["operator"], Role.DRAIN)
    return await handler(request)


class StillWallClock(StillClock):
    """Clock of which the wall time stands still, too."""

    def wall_ns(self) -> int:
        return START_NS + self.now

    def advance(self, by_ns: int) -> None:
        self.now += by_ns


class Announcing:
    """Gateway's core, with replicas as an orchestrator tells of them."""

    def __init__(self, folder: Path) -> None:
        self.clock = StillWallClock()
        self.out = io.StringIO()
        config = region_config("us-1", US, [], policy_file=write_policy(folder, US))
        log = make_logger(LoggingConfig(format=LogFormat.JSON), config.gateway_id, self.out)
        self.observed = ObservedCore(config, self.clock, log)
        (self.leaving,) = [each for each in self.observed.features if isinstance(each, LeavingExtension)]
        self._url = ""

    @property
    def wall_s(self) -> float:
        return self.clock.wall_ns() / SECOND

    def replicas(self, **leave_in_s: float | None) -> None:
        """Serve these replicas, as `Assignments` does; each value is when the orchestrator ends it."""
        configs = [
            ReplicaConfig(
                replica_spec(name),
                "http://127.0.0.1:1",
                Dialect.VLLM,
                leaves_at_s=None if left_s is None else self.wall_s + left_s,
            )
            for name, left_s in leave_in_s.items()
        ]
        self.observed.follow(configs)
        version = self.observed.core.assignment_version + 1
        self.observed.submit(AssignmentApplied(version, tuple(each.spec for each in configs), ()))

    def left_s(self, name: str = "r0") -> float | None:
        """Seconds that the core knows the replica to have left."""
        state = self.observed.core.replicas.get(ReplicaId(name))
        assert state is not None
        end_ns = state.leave_by_ns
        return None if end_ns is None else round((end_ns - self.clock.now_ns()) / SECOND, 3)

    def logged(self, event: str) -> list[dict[str, object]]:
        told = map(json.loads, self.out.getvalue().splitlines())
        return [line for line in told if line["event"] == event]

    def shown(self) -> list[LeavingReplica]:
        return self.leaving.describe().replicas

    async def ask(self, method: str, operator: str, **body: object) -> tuple[int, dict[str, object]]:
        """Status and answer of a call about `r0`."""
        app = web.Application(middlewares=[name_operator])
        self.leaving.add_routes(app)
        async with serving_http(web.AppRunner(app)) as port, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port}/admin/replicas/r0/leave-by"
            async with session.request(method, url, json=body or None, headers={"operator": operator}) as answer:
                return answer.status, await answer.json()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Announcing]:
    made = Announcing(tmp_path)
    yield made
    made.observed.close()


async def test_an_orchestrators_end_of_a_replica_that_joins_is_known_with_it(gateway: Announcing) -> None:
    gateway.replicas(r0=30, r1=None, r2=40)
    assert [gateway.left_s(name) for name in ("r0", "r1", "r2")] == [30, None, 40]
    gateway.replicas(r1=None)
    gateway.replicas(r0=20, r1=None)
    assert gateway.left_s() == 20


class TestRepeats:
    async def test_the_same_time_again_is_not_told_again(self, gateway: Announcing) -> None:
        gateway.replicas(r0=None)
        ends = set()
        for _ in range(30):
            _, told = await gateway.ask("POST", "ann", at="2026-03-01T12:00:00.000Z")
            ends.add(json.dumps(told))
            gateway.clock.advance(7 * MS + 12_345)
        assert ends == {json.dumps({"leaving": [{"replica": "r0", "leave_by": "2026-03-01T12:00:00Z"}]})}
        assert len(gateway.logged("replica_leaving")) == 1

    async def test_nor_are_seconds_that_are_repeated_at_once(self, gateway: Announcing) -> None:
        gateway.replicas(r0=None)
        for _ in range(3):
            await gateway.ask("POST", "ann", seconds=30)
            gateway.clock.advance(7 * MS)
        await gateway.ask("POST", "ann", seconds=20)
        assert [each["left_s"] for each in gateway.logged("replica_leaving")] == [30.0, 20.0]


class TestSources:
    """The earliest end of all that announce one is in force."""

    async def test_a_later_end_of_another_source_changes_nothing(self, gateway: Announcing) -> None:
        gateway.replicas(r0=None)
        await gateway.ask("POST", "ann", seconds=30)
        gateway.replicas(r0=600)
        assert gateway.left_s() == 30
        _, told = await gateway.ask("POST", "host-watch", seconds=120)
        assert gateway.left_s() == 30
        (shown,) = gateway.shown()
        assert (shown.by, told) == ("ann", {"leaving": [{"replica": "r0", "leave_by": shown.leave_by}]})

    async def test_a_later_end_of_the_same_source_replaces_its_own(self, gateway: Announcing) -> None:
        gateway.replicas(r0=None)
        await gateway.ask("POST", "ann", seconds=30)
        await gateway.ask("POST", "ann", seconds=90)
        assert gateway.left_s() == 90

    async def test_what_the_orchestrator_calls_off_leaves_an_operators(self, gateway: Announcing) -> None:
        gateway.replicas(r0=10)
        await gateway.ask("POST", "kubernetes", seconds=30)
        assert gateway.left_s() == 10
        gateway.replicas(r0=None)
        gateway.replicas(r0=None)
        assert gateway.left_s() == 30
        assert not gateway.logged("replica_stays")

    async def test_operators_withdraw_each_others_and_not_the_orchestrators(self, gateway: Announcing) -> None:
        gateway.replicas(r0=None)
        await gateway.ask("POST", "ann", seconds=30)
        assert await gateway.ask("DELETE", "bob") == (200, {"withdrawn": ["r0"]})
        assert (gateway.left_s(), gateway.shown()) == (None, [])
        await gateway.ask("POST", "ann", seconds=30)
        gateway.replicas(r0=600)
        status, told = await gateway.ask("DELETE", "bob")
        assert (status, "Kubernetes ends the pod of r0" in str(told)) == (409, True)
        assert [each.by for each in gateway.shown()] == ["kubernetes"]
        assert gateway.left_s() == 600


async def test_what_has_left_is_forgotten(gateway: Announcing) -> None:
    for number in range(5):
        gateway.replicas(**{f"pod-{number}": 30})
    gateway.replicas(r0=None)
    assert gateway.shown() == []
    assert gateway.leaving._notices == {}
    await gateway.ask("POST", "ann", seconds=30)
    gateway.replicas()
    gateway.replicas(r0=None)
    assert gateway.left_s() is None
    state = gateway.observed.core.replicas.get(ReplicaId("r0"))
    assert state is not None
    assert state.standing is not Standing.LEAVING
