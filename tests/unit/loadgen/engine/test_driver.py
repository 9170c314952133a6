from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadgen.engine.driver import EngineDriver, TokenFeed
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.presets import TINY
from loadgen.engine.ranks import Ranks
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.vocabulary import FinishReason, Rejection
from mesh.clock import Clock
from tests.support.background import in_background
from tests.support.clock import StillClock

MS = 1_000_000


def tiny_driver(clock: Clock, *, time_scale: float = 1.0, queued_requests_max: int | None = None) -> EngineDriver:
    config = replace(TINY, stream_every_iteration=True, queued_requests_max=queued_requests_max)
    return EngineDriver(Ranks(config), clock, time_scale=time_scale)


@asynccontextmanager
async def running(driver: EngineDriver) -> AsyncIterator[EngineDriver]:
    async with in_background(driver.run()):
        yield driver


def submitted(driver: EngineDriver, request: EngineRequest) -> TokenFeed:
    feed = driver.submit(request)
    assert isinstance(feed, TokenFeed)
    return feed


def let_it_run(driver: EngineDriver, clock: StillClock, until_ns: int) -> None:
    """Advance a driver that has no running task; it reads its clock when asked for its load."""
    driver.load()
    clock.now = until_ns
    driver.load()


async def test_tokens_come_one_after_the_other_and_then_the_reason() -> None:
    async with running(tiny_driver(Clock(), time_scale=0.1)) as driver:
        feed = submitted(driver, EngineRequest("a", 20, 5, finish_reason=FinishReason.STOP))
        seen = [0]
        while feed.reason is None:
            await feed.more_than(seen[-1])
            seen.append(feed.tokens)

    assert seen[-1] == 5
    assert seen == sorted(set(seen))
    assert feed.reason is FinishReason.STOP
    assert driver.load().finished == 1


async def test_many_requests_share_the_engine() -> None:
    async with running(tiny_driver(Clock(), time_scale=0.05)) as driver:
        feeds = [submitted(driver, EngineRequest(str(index), 20, 4)) for index in range(20)]
        for feed in feeds:
            await feed.more_than(3)

    assert [feed.tokens for feed in feeds] == [4] * 20


async def test_a_slow_reader_gets_everything_in_one_piece() -> None:
    clock = StillClock()
    driver = tiny_driver(clock)
    feed = submitted(driver, EngineRequest("a", 20, 10))
    let_it_run(driver, clock, 3_600_000 * MS)

    await feed.more_than(0)
    assert (feed.tokens, feed.reason) == (10, FinishReason.LENGTH)


@pytest.mark.parametrize(("time_scale", "tokens"), [(1.0, 1), (0.5, 3), (2.0, 0)])
async def test_the_scale_stretches_wall_time(time_scale: float, tokens: int) -> None:
    clock = StillClock()
    driver = tiny_driver(clock, time_scale=time_scale)
    feed = submitted(driver, EngineRequest("a", 10, 10))
    let_it_run(driver, clock, 5 * MS + 10 * MS // 4)

    assert isinstance(TINY.cost, LinearCost)
    assert TINY.cost.iteration_ns(sequences=1, prefill_tokens=10) == 4.7 * MS
    assert feed.tokens == tokens


async def test_metrics_are_in_wall_time() -> None:
    clock = StillClock()
    driver = tiny_driver(clock, time_scale=0.5)
    submitted(driver, EngineRequest("a", 10, 3))
    let_it_run(driver, clock, 1_000 * MS)

    assert driver.metrics[0].first_token.total == pytest.approx(0.00235)
    assert driver.metrics[0].inter_token.total == pytest.approx(2 * 0.00225)
    assert sum(driver.metrics[0].inter_token.counts) == 2
    assert driver.metrics[0].end_to_end.total == pytest.approx(0.00235 + 2 * 0.00225)
    assert driver.metrics[0].finished["length"] == 1
    assert driver.metrics[0].prompt_tokens.total == 10
    assert driver.metrics[0].generation_tokens.total == 3


async def test_abort_frees_and_counts_as_nothing() -> None:
    clock = StillClock()
    driver = tiny_driver(clock)
    submitted(driver, EngineRequest("a", 100, 10))
    driver.load()
    assert driver.load().running == 1
    driver.abort("a")
    driver.abort("a")

    load = driver.load()
    assert (load.running, load.blocks_held) == (0, 0)
    assert sum(driver.metrics[0].finished.values()) == 0


async def test_abort_all_ends_every_answer_where_it_stands() -> None:
    driver = tiny_driver(StillClock())
    feeds = [submitted(driver, EngineRequest(str(index), 10, 10)) for index in range(12)]
    driver.abort_all()

    for feed in feeds:
        await feed.more_than(0)
        assert feed.reason is FinishReason.ABORT
    assert driver.load().running == driver.load().waiting == 0


async def test_an_answer_that_has_ended_is_not_aborted() -> None:
    clock = StillClock()
    driver = tiny_driver(clock)
    feed = submitted(driver, EngineRequest("a", 10, 1))
    let_it_run(driver, clock, 1_000 * MS)
    driver.abort_all()

    assert feed.reason is FinishReason.LENGTH


async def test_a_preempted_request_waited_once() -> None:
    clock = StillClock()
    config = replace(TINY, kv_blocks=40, context_tokens_max=600, stream_every_iteration=True)
    driver = EngineDriver(Ranks(config), clock, time_scale=1.0)
    for name in "ab":
        submitted(driver, EngineRequest(name, 200, 400))
    driver.load()
    clock.now = 3_600_000 * MS

    assert driver.load().preemptions > 0
    assert sum(driver.metrics[0].queue_time.counts) == 2


async def test_a_rejection_is_handed_on() -> None:
    driver = tiny_driver(StillClock(), queued_requests_max=1)
    assert isinstance(driver.submit(EngineRequest("a", 10, 10)), TokenFeed)
    assert driver.submit(EngineRequest("b", 10, 10)) is Rejection.QUEUE_FULL
