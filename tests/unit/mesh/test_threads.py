from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import BinaryIO

import pytest

from mesh.threads import finish_in_thread
from tests.support.threads import threads_taken


def fail() -> None:
    raise OSError("no")


async def test_it_gives_what_the_work_gives() -> None:
    assert await finish_in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(OSError, match="no"):
        await finish_in_thread(fail)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cancellations", [1, 3])
async def test_cancelled_before_the_work_has_begun_it_is_done_all_the_same(cancellations: int, fails: bool) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    done: list[str] = []

    def work() -> None:
        done.append("done")
        if fails:
            fail()

    with threads_taken() as free:
        waiting = asyncio.get_running_loop().create_task(finish_in_thread(work))
        await asyncio.sleep(0)
        for _ in range(cancellations):
            waiting.cancel()
            await asyncio.sleep(0)
            assert (done, waiting.done()) == ([], False)
        free()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await waiting
    assert done == ["done"]
    assert repr(cancelled.value.__cause__) == ("OSError('no')" if fails else "None")
    del cancelled, waiting
    gc.collect()
    assert complaints == []


async def test_a_file_that_was_opened_for_a_cancelled_caller_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    opened: list[BinaryIO] = []

    def work() -> BinaryIO:
        opened.append(file.open("rb"))
        return opened[0]

    with threads_taken() as free:
        waiting = asyncio.get_running_loop().create_task(finish_in_thread(work))
        await asyncio.sleep(0)
        waiting.cancel()
        free()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert [each.closed for each in opened] == [True]
