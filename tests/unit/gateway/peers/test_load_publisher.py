from __future__ import annotations

import asyncio

from gateway.core.vocabulary import GatewayId, LoadReport
from gateway.peers.load_publisher import LoadPublisher
from tests.support.core import US


def report(sequence: int) -> LoadReport:
    return LoadReport(GatewayId("us-1"), US, sequence, accepting=True, assignment_version=1, policy_digest="")


async def test_a_waiting_subscriber_gets_the_next_report() -> None:
    board = LoadPublisher()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(board.newer_than(None, wait_max_s=60)) for _ in range(3)]
        await asyncio.sleep(0)
        board.post(report(1), now_ns=5)
    assert [posted.report.sequence for task in waiting if (posted := task.result())] == [1, 1, 1]


async def test_a_slow_subscriber_gets_the_newest_and_no_backlog() -> None:
    board = LoadPublisher()
    board.post(report(1), now_ns=1)
    first = await board.newer_than(None, wait_max_s=60)
    for sequence in range(2, 100):
        board.post(report(sequence), now_ns=sequence)
    newest = await board.newer_than(first, wait_max_s=60)
    assert newest is not None
    assert (newest.report.sequence, newest.posted_ns) == (99, 99)


async def test_without_news_the_same_report_comes_again_with_its_first_posting() -> None:
    board = LoadPublisher()
    board.post(report(1), now_ns=1)
    first = await board.newer_than(None, wait_max_s=60)
    assert await board.newer_than(first, wait_max_s=0) is first


async def test_before_any_report_there_is_nothing_to_send() -> None:
    assert await LoadPublisher().newer_than(None, wait_max_s=0) is None


async def test_closing_ends_every_wait() -> None:
    board = LoadPublisher()
    board.post(report(1), now_ns=1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(board.newer_than(board.newest, wait_max_s=60))
        await asyncio.sleep(0)
        board.close()
    assert waiting.result() is None


async def test_what_was_posted_last_is_still_taken_after_closing() -> None:
    board = LoadPublisher()
    board.post(report(1), now_ns=1)
    first = await board.newer_than(None, wait_max_s=60)
    board.post(report(2), now_ns=2)
    board.close()
    farewell = await board.newer_than(first, wait_max_s=60)
    assert farewell is not None
    assert farewell.report.sequence == 2
    assert await board.newer_than(farewell, wait_max_s=60) is None
