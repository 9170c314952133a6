"""Additions of a gateway's driver to the pump: it publishes load, and holds a mailbox for each open request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gateway.core.events import Event
from gateway.core.features.disaggregated.events import DecodeProgress, ProgressSampled
from gateway.core.kernel.effects import (
    AcceptForward,
    Effect,
    EndRequest,
    PublishLoad,
    RefuseForward,
    SampleProgress,
    StartLeg,
)
from gateway.core.kernel.events import (
    DrainRequested,
    FirstToken,
    LegEnded,
    RequestAbandoned,
    RequestArrived,
    TimePassed,
)
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    Outcome,
    PoolName,
    RefusalReason,
    ReplicaId,
    replica_target,
)
from gateway.request.driver import Driver, GatewaySubscriptions
from mesh.clock import Clock
from mesh.pump import Step
from tests.support.core import US, policy, profile
from tests.support.orders import R1, end, forward_from_eu, start

REPORT = LoadReport(GatewayId("gw"), US, 1, accepting=True, assignment_version=1, policy_digest="")

Answer = Callable[[Any], Iterable[Effect]]


class ScriptedCore:
    """Core that answers each kind of event as the test says, and records what it was told."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.told: list[Event] = []
        self.wakeup_ns: int | None = None
        self.is_busy = False

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        assert not self.is_busy, "the core was entered twice"
        self.is_busy = True
        try:
            self.told.append(event)
            answer = self.answers.get(type(event).__name__)
            return list(answer(event)) if answer else []
        finally:
            self.is_busy = False

    def next_wakeup_ns(self) -> int | None:
        return self.wakeup_ns

    arrived: RequestRecord | None = None

    def told_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


def arrive(driver: Driver) -> None:
    driver.submit(RequestArrived(profile(R1), 10**18))


def make(**answers: Answer) -> tuple[ScriptedCore, Driver]:
    core = ScriptedCore(**answers)
    return core, Driver(core, Clock())


async def test_a_heartbeat_goes_to_whoever_publishes_and_the_core_is_not_entered_meanwhile() -> None:
    core, driver = make(DrainRequested=lambda _: [PublishLoad(REPORT)])
    published: list[LoadReport] = []

    def publish(report: LoadReport) -> None:
        published.append(report)
        driver.submit(FirstToken(R1, 1, 1))
        assert not core.told_of(FirstToken), "submitting from inside a step must not enter the core"

    driver.on_publish(publish)
    driver.submit(DrainRequested())
    assert published == [REPORT]
    assert core.told_of(FirstToken) == [FirstToken(R1, 1, 1)]
    assert driver.crash is None


async def test_a_pool_that_asks_is_told_of_its_own_alone() -> None:
    chat, code = PoolName("chat"), PoolName("code")
    core, driver = make(DrainRequested=lambda _: [SampleProgress(chat), SampleProgress(code)])
    at = replica_target(ReplicaId("d"))
    driver.progress.begins(R1, 1, chat, at, lambda: 7)
    driver.submit(DrainRequested())
    assert core.told_of(ProgressSampled) == [
        ProgressSampled(chat, (DecodeProgress(R1, 1, 7),)),
        ProgressSampled(code, ()),
    ]


async def test_an_owner_acts_on_a_step_before_anybody_is_told_of_it() -> None:
    seen: list[Event] = []

    class Watcher:
        subscriptions: GatewaySubscriptions = {Step: lambda step, _: seen.append(step.event)}  # noqa: RUF012 - a test's

    core = ScriptedCore(RequestArrived=lambda _: [start()], LegEnded=lambda _: [end()])
    driver = Driver(core, Clock(), observers=[Watcher()])
    with driver.open_mailbox(R1) as mailbox:
        arrive(driver)
        assert await mailbox.next() == start()
        assert seen == [], "the owner waits for nothing"
        await asyncio.sleep(0)
        assert [type(event) for event in seen] == [RequestArrived]
        mailbox.end_leg(LegEnded(R1, 1, 1, LegResult.COMPLETED))


async def test_the_core_asks_for_the_time_by_its_own_event() -> None:
    passed = asyncio.Event()

    def sleep_again(_: Event) -> list[Effect]:
        core.wakeup_ns = None
        passed.set()
        return []

    core, driver = make(TimePassed=sleep_again)
    core.wakeup_ns = 0
    driver.submit(DrainRequested())
    await passed.wait()
    assert core.told == [DrainRequested(), TimePassed()]


async def test_of_two_records_with_one_id_the_later_is_kept_until_its_owner_is_done() -> None:
    core, driver = make()
    arrivals = [RequestArrived(profile(R1), 10**18) for _ in range(2)]
    records: list[RequestRecord | None] = []
    for arrival in arrivals:
        core.arrived = RequestRecord(arrival, policy(US), 0)
        records.append(driver.begin(arrival))
    first, second = records
    assert first is not None
    assert second is not None
    driver.done(first)
    assert driver.requests == {R1: second}
    driver.done(second)
    assert driver.requests == {}


async def test_the_record_of_a_refused_forward_takes_no_other_s_place() -> None:
    core, driver = make()
    running = core.arrived = RequestRecord(RequestArrived(profile(R1), 10**18), policy(US), 0)
    driver.begin(RequestArrived(profile(R1), 10**18))
    double = forward_from_eu(profile(R1), 10**18)
    core.arrived = RequestRecord(double, policy(US), 0)
    core.arrived.refusal = RefuseForward(R1, RefusalReason.DUPLICATE, "")
    assert driver.begin(double) is core.arrived
    assert driver.requests == {R1: running}


async def test_observers_find_the_record_of_each_step_s_request() -> None:
    """An id that comes again, and a flood of steps in one turn of the event loop."""
    found: list[bool] = []

    class Watcher:
        subscriptions: GatewaySubscriptions = {  # noqa: RUF012 - a test's
            RequestArrived: lambda _, event: found.append(
                driver.requests[event.profile.request_id].arrived_ns == expected[id(event)]
            )
        }

    core = ScriptedCore()
    driver = Driver(core, Clock(), observers=[Watcher()])
    expected: dict[int, int] = {}
    arrivals = [RequestArrived(profile(f"r{number // 2}"), 10**18) for number in range(1_200)]
    for number, arrival in enumerate(arrivals):
        expected[id(arrival)] = number
        core.arrived = RequestRecord(arrival, policy(US), number)
        driver.begin(arrival)
    driver.tell_observers()
    assert found == [True] * len(arrivals)


class TestMailboxes:
    async def test_one_owner_per_request(self) -> None:
        _, driver = make()
        with driver.open_mailbox(R1), pytest.raises(AssertionError):
            driver.open_mailbox(R1)

    async def test_orders_reach_the_owner_and_its_answers_the_core(self) -> None:
        core, driver = make(RequestArrived=lambda _: [AcceptForward(R1), start()], LegEnded=lambda _: [end()])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert [await mailbox.next(), await mailbox.next()] == [AcceptForward(R1), start()]
            mailbox.end_leg(LegEnded(R1, 1, 1, LegResult.COMPLETED))
            assert await mailbox.next() == end()
        assert driver.open_requests == 0
        assert core.told_of(RequestAbandoned) == []

    async def test_what_the_core_says_of_a_request_that_is_left_is_still_heard(self) -> None:
        core, driver = make(RequestArrived=lambda _: [start()], RequestAbandoned=lambda _: [end(Outcome.ABANDONED)])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
        assert [type(event) for event in core.told] == [RequestArrived, LegEnded, RequestAbandoned]
        assert mailbox.end == end(Outcome.ABANDONED)

    async def test_a_start_for_an_owner_that_has_gone_is_answered_at_once(self) -> None:
        core, driver = make(RequestAbandoned=lambda _: [], DrainRequested=lambda _: [start(7), end()])
        with driver.open_mailbox(R1):
            pass
        driver.submit(DrainRequested())
        assert [(each.attempt, each.result) for each in core.told_of(LegEnded)] == [(7, LegResult.CANCELLED)]


class TestFailing:
    def failing(self) -> tuple[ScriptedCore, Driver]:
        def fail(_: Event) -> list[Effect]:
            raise AssertionError("counted wrong")

        return make(RequestArrived=lambda _: [start()], DrainRequested=fail)

    async def test_nobody_is_left_hanging_and_nothing_more_is_taken_in(self) -> None:
        core, driver = self.failing()
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            order = await mailbox.next()
            assert isinstance(order, StartLeg)
            driver.submit(DrainRequested())
            assert mailbox.scope_of(order).is_stopped
            mailbox.end_leg(LegEnded(R1, 1, 1, LegResult.CANCELLED))
            last = await mailbox.next()
        assert isinstance(last, EndRequest)
        assert last.outcome is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert core.told[-1] == DrainRequested()

    async def test_whoever_comes_later_is_told_at_once(self) -> None:
        _, driver = self.failing()
        driver.submit(DrainRequested())
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert isinstance(await mailbox.next(), EndRequest)
