from __future__ import annotations

import asyncio

from gateway.config.targets import Dialect
from gateway.core.vocabulary import ReplicaId
from gateway.engines.endpoints import Engine, ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.loops import EngineLoops, ProbeRateLimit
from mesh.clock import Clock
from mesh.supervisor import Backoff
from tests.fakes.engine import Tally
from tests.support.clock import StillClock
from tests.support.core import US

QUICK = Backoff(min_ns=0, max_ns=0)


def endpoint(name: str, url: str) -> ReplicaEndpoint:
    return ReplicaEndpoint(ReplicaId(name), US, url, Dialect.VLLM)


def test_looks_at_adopted_engines_have_turns_so_many_a_second_and_save_none_up() -> None:
    clock = StillClock(5_000_000_000)
    budget = ProbeRateLimit(clock)
    assert [budget.wait_s(4) for _ in range(3)] == [0, 0.25, 0.5]
    clock.now += 500_000_000
    assert [budget.wait_s(4), budget.wait_s(4)] == [0.25, 0.5]
    clock.now += 60_000_000_000
    assert [budget.wait_s(4), budget.wait_s(4)] == [0, 0.25]


async def test_each_engine_has_one_loop_for_as_long_as_it_is_ours() -> None:
    endpoints = ReplicaEndpoints([endpoint("a", "http://x"), endpoint("b", "http://x"), endpoint("c", "http://y")])
    loops = EngineLoops(endpoints, Clock(), QUICK)
    started: list[str] = []
    tally, gone = Tally(), Tally()

    async def loop(engine: Engine) -> None:
        started.append(engine.url)
        tally.add()
        while endpoints.of(engine):
            await endpoints.until_replaced()
        gone.add()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(loops.run(loop))
        await tally.reaches(2)
        assert started == ["http://x", "http://y"]
        endpoints.replace([endpoint("c", "http://y"), endpoint("d", "http://z")])
        await tally.reaches(3)
        await gone.reaches(1)
        assert started[2] == "http://z"
        running.cancel()


async def test_a_loop_that_fails_runs_again_and_ends_no_other() -> None:
    endpoints = ReplicaEndpoints([endpoint("a", "http://x"), endpoint("b", "http://y")])
    told: list[tuple[str, str]] = []
    loops = EngineLoops(endpoints, Clock(), QUICK, lambda url, error: told.append((url, str(error))))
    runs, calm = Tally(), asyncio.Event()

    async def loop(engine: Engine) -> None:
        if engine.url == "http://y":
            await calm.wait()
            return
        runs.add()
        raise RuntimeError("a fault of ours")

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(loops.run(loop))
        await runs.reaches(3)
        assert loops.restarts["http://x"] >= 2
        assert set(told) == {("http://x", "a fault of ours")}
        calm.set()
        endpoints.replace([])
        running.cancel()
