"""A group of tasks whose owner is stopped while one of them fails."""

from __future__ import annotations

import asyncio
import sys

import pytest

from mesh.task_group import TaskGroup


class Lost(Exception):
    pass


async def fails() -> None:
    raise Lost


async def fails_when_stopped() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise Lost


async def ends_late() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def outlives_losses() -> None:
    """Loop that tries again after each failure."""
    while True:
        try:
            async with TaskGroup() as tasks:
                for each in (fails, ends_late):
                    tasks.create_task(each())
        except* Lost:
            pass
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(12))
async def test_a_loop_that_outlives_failures_ends_when_it_is_cancelled(turns: int) -> None:
    async with asyncio.TaskGroup() as owners:
        loop = owners.create_task(outlives_losses())
        for _ in range(turns):
            await asyncio.sleep(0)
        loop.cancel()
    assert loop.cancelled()


async def test_a_failure_is_raised_all_the_same_and_the_next_wait_is_cancelled() -> None:
    seen: list[str] = []

    async def owner() -> None:
        try:
            async with TaskGroup() as tasks:
                tasks.create_task(fails_when_stopped())
        except* Lost:
            seen.append("lost")
        await asyncio.sleep(0)
        seen.append("ran on")

    async with asyncio.TaskGroup() as owners:
        task = owners.create_task(owner())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert seen == ["lost"]


async def test_without_a_cancellation_it_is_as_any_group() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with TaskGroup() as tasks:
            tasks.create_task(fails())
    assert [type(each) for each in raised.value.exceptions] == [Lost]
    await asyncio.sleep(0)
    async with TaskGroup() as tasks:
        ended = tasks.create_task(asyncio.sleep(0, "all well"))
    assert ended.result() == "all well"


async def test_whose_owner_was_being_cancelled_before_is_not_cancelled_again() -> None:
    """Holds for clean-up code that runs during a cancellation. Python 3.13 cancels the owner again by itself."""
    cleaned: list[str] = []

    async def owner() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                async with TaskGroup() as tasks:
                    tasks.create_task(fails())
            except* Lost:
                pass
            await asyncio.sleep(0)
            cleaned.append("up")

    async with asyncio.TaskGroup() as owners:
        task = owners.create_task(owner())
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert cleaned == ([] if sys.version_info >= (3, 13) else ["up"])
