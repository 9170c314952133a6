from __future__ import annotations

import asyncio

import pytest

from mesh.waiter import Waiter


async def _begun(waiter: Waiter) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(waiter.wait())
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_whoever_waits_is_woken_once_however_often_it_is_called() -> None:
    waiter = Waiter()
    task = await _begun(waiter)
    waiter.wake()
    waiter.wake()
    await task
    again = await _begun(waiter)
    waiter.wake()
    await again


async def test_a_wake_that_nobody_waited_for_is_not_kept() -> None:
    waiter = Waiter()
    waiter.wake()
    waiter.fail(OSError("unheard"))
    task = await _begun(waiter)
    waiter.wake()
    await task


async def test_it_raises_what_it_was_failed_with() -> None:
    waiter = Waiter()
    task = await _begun(waiter)
    waiter.fail(OSError("gone"))
    waiter.wake()
    with pytest.raises(OSError, match="gone"):
        await task


async def test_one_that_was_cancelled_can_wait_again() -> None:
    waiter = Waiter()
    task = await _begun(waiter)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waiter.wake()
    again = await _begun(waiter)
    waiter.wake()
    await again


async def test_two_may_not_wait_for_one_thing() -> None:
    waiter = Waiter()
    task = await _begun(waiter)
    with pytest.raises(AssertionError, match="two tasks"):
        await waiter.wait()
    waiter.wake()
    await task
