from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mesh.patience import Patience
from tests.support.stalls import stall

TURNS = 5
"""Turns of the event loop that reading takes, as with gRPC."""


def after_turns(turns: int, then: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(after_turns, turns - 1, then) if turns else then()


async def wait_across_a_stall(time_limit: Patience | asyncio.Timeout, stall_s: float) -> str:
    """Wait for what has arrived while this process did not run, and is then still to be read."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[str] = loop.create_future()
    loop.call_soon(stall, stall_s)

    def read() -> None:
        if not said.done():
            said.set_result("well")

    loop.call_soon(after_turns, TURNS, read)
    async with time_limit:
        return await said


@pytest.mark.parametrize("timeout_s", [0.1, 0.25, 2, 60])
@pytest.mark.parametrize("stall_s", [120, 3600])
async def test_what_arrived_while_this_process_did_not_run_is_read_before_the_time_is_up(
    timeout_s: float, stall_s: float
) -> None:
    with pytest.raises(TimeoutError):
        await wait_across_a_stall(asyncio.timeout(timeout_s), stall_s)
    assert await wait_across_a_stall(Patience(timeout_s), stall_s) == "well"


async def test_time_in_which_this_process_ran_counts_and_after_a_stall_goes_on() -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(stall, 60)
    began_s = loop.time()
    with pytest.raises(TimeoutError):
        async with Patience(0.3):
            await asyncio.Event().wait()
    assert loop.time() - began_s >= 60 + 0.05, "60 s stand for the first quarter of a second"


async def test_a_process_that_is_always_late_notices_silence_in_the_end() -> None:
    """Every timer of this process is late, and nothing comes."""

    async def be_late() -> None:
        while True:
            stall(0.03)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        busy = tasks.create_task(be_late())
        with pytest.raises(TimeoutError):
            async with Patience(0.03):
                await asyncio.Event().wait()
        busy.cancel()


async def test_silence_without_a_stall_is_noticed() -> None:
    with pytest.raises(TimeoutError):
        async with Patience(0.01):
            await asyncio.Event().wait()


async def test_a_cancellation_from_outside_stays_one() -> None:
    async with asyncio.TaskGroup() as tasks:

        async def wait() -> None:
            async with Patience(3600):
                await asyncio.Event().wait()

        task = tasks.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
