from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from mesh.clock import Clock
from mesh.supervisor import Backoff, OwnedLoops, Supervisor, keep_running
from tests.support.gateways import until

MS = 1_000_000
SECOND = 1_000_000_000


def test_back_off_doubles_between_bounds_and_scatters() -> None:
    backoff = Backoff(100 * MS, 1000 * MS)
    assert [backoff.pause_s(n) for n in (0, 1, 2, 3, 5, 10_000)] == [0.1, 0.1, 0.2, 0.4, 1.0, 1.0]
    drawn = [backoff.pause_s(5, random.Random(seed)) for seed in range(200)]
    assert 0.5 <= min(drawn) < 0.55
    assert max(drawn) == pytest.approx(1.0, rel=0.05)
    assert len(set(drawn)) > 100


def test_only_what_was_well_for_a_while_is_tried_again_soon() -> None:
    """A task that fails as soon as it is back would otherwise be restarted without pause."""
    backoff = Backoff(max_ns=10 * SECOND)
    assert backoff.failures_in_a_row(0, 0) == 1
    assert backoff.failures_in_a_row(1, 0) == 2
    assert backoff.failures_in_a_row(7, 9 * SECOND) == 8
    assert backoff.failures_in_a_row(8, 11 * SECOND) == 1


async def test_a_loop_that_fails_runs_again_and_is_told() -> None:
    told: list[tuple[str, str]] = []
    runs, through = 0, asyncio.Event()

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise RuntimeError(f"boom {runs}")
        through.set()
        await asyncio.Event().wait()

    async with Supervisor(Clock(), lambda name, error: told.append((name, str(error)))) as supervisor:
        supervisor.run("test", loop)
        await through.wait()
    assert told == [("test", "boom 1"), ("test", "boom 2")]


async def test_a_loop_that_is_wanted_no_longer_does_not_run_again() -> None:
    failures = 0

    async def loop() -> None:
        raise RuntimeError("boom")

    def on_failure(_name: str, _error: Exception) -> None:
        nonlocal failures
        failures += 1

    await keep_running(
        "test",
        loop,
        clock=Clock(),
        on_failure=on_failure,
        backoff=Backoff(0, 0),
        is_wanted=lambda: failures < 3,
    )
    assert failures == 3


async def test_a_loop_can_be_ended_alone() -> None:
    ended, other = asyncio.Event(), asyncio.Event()

    async def until_cancelled(gone: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async with Supervisor(Clock(), lambda *_: None) as supervisor:
        end = supervisor.run("one", lambda: until_cancelled(ended))
        supervisor.run("other", lambda: until_cancelled(other))
        await asyncio.sleep(0)
        end()
        await ended.wait()
        assert not other.is_set()
    assert other.is_set()


async def test_loops_of_an_owner_run_only_while_it_owns_and_write_their_last() -> None:
    runs, saved, begun = list[str](), list[str](), asyncio.Event()

    def loop(name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            runs.append(name)
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                saved.append(name)

        return run

    async with Supervisor(Clock(), lambda _name, _error: None) as supervisor:
        tenure = OwnedLoops(supervisor, Clock(), lambda _name, _error: None)
        tenure.run("a", loop("a"))
        stop = tenure.run("b", loop("b"))
        await asyncio.sleep(0)
        assert not runs
        tenure.begin()
        tenure.begin()
        await begun.wait()
        assert runs == ["a", "b"], "each once"
        await tenure.end()
        assert sorted(saved) == ["a", "b"]
        stop()
        begun.clear()
        tenure.begin()
        tenure.run("c", loop("c"))
        await until(lambda: runs == ["a", "b", "a", "c"])
    assert sorted(saved) == ["a", "a", "b", "c"]
