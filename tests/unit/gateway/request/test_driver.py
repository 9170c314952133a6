"""Additions of a gateway's driver to the pump: it publishes load, and is the port of its open requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from gateway.core.events import Event
from gateway.core.kernel.effects import (
    AcceptForward,
    Effect,
    EndRequest,
    PublishLoad,
    SampleProgress,
    StartLeg,
)
from gateway.core.kernel.events import (
    DrainRequested,
    FirstToken,
    LegEnded,
    LegProgress,
    ProgressSampled,
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
    ReplicaId,
    replica_target,
)
from gateway.request.driver import Driver, GatewaySubscriptions
from gateway.request.port import Order
from mesh.clock import Clock
from mesh.steps import Step
from tests.support.core import US, policy, profile
from tests.support.orders import R1, end, start

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


class Opened:
    """Request that records what it is told, and does what the test says."""

    def __init__(self, driver: Driver) -> None:
        self.orders: list[Order] = []
        self.reports = 0
        self._driver = driver

    def begin(self) -> None:
        self._driver.begin(self, RequestArrived(profile(R1), 10**18))

    def on_effect(self, effect: Order) -> None:
        self.orders.append(effect)

    def end_leg(self) -> None:
        self._driver.post(LegEnded(R1, 1, 1, LegResult.COMPLETED))

    def report(self) -> None:
        self.reports += 1


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
        ProgressSampled(chat, (LegProgress(R1, 1, 7),)),
        ProgressSampled(code, ()),
    ]


async def test_a_request_acts_on_a_step_before_observers_are_told_of_it() -> None:
    seen: list[Event] = []

    class Watcher:
        subscriptions: GatewaySubscriptions = {Step: lambda step, _: seen.append(step.event)}  # noqa: RUF012 - a test's

    core = ScriptedCore(RequestArrived=lambda _: [start()], LegEnded=lambda _: [end()])
    driver = Driver(core, Clock(), observers=[Watcher()])
    request = Opened(driver)
    request.begin()
    assert request.orders == [start()]
    assert seen == [], "the request waits for nothing"
    await asyncio.sleep(0)
    assert [type(event) for event in seen] == [RequestArrived]


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


async def test_of_two_records_with_one_id_the_later_is_kept_until_its_request_is_reported() -> None:
    core, driver = make()
    first, second = (RequestRecord(RequestArrived(profile(R1), 10**18), policy(US), 0) for _ in range(2))
    for record in (first, second):
        core.arrived = record
        assert driver.arrived() is record
        driver.keep(record)
    driver.done(first)
    assert driver.requests == {R1: second}
    driver.done(second)
    assert driver.requests == {}


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
        driver.begin(Opened(driver), arrival)
        driver.keep(core.arrived)
    driver.tell_observers()
    assert found == [True] * len(arrivals)


class TestPort:
    async def test_effects_reach_the_request_and_its_events_the_core(self) -> None:
        core, driver = make(RequestArrived=lambda _: [AcceptForward(R1), start()], LegEnded=lambda _: [end()])
        request = Opened(driver)
        request.begin()
        assert request.orders == [AcceptForward(R1), start()]
        request.end_leg()
        assert request.orders[2:] == []
        driver.run()
        assert request.orders[2:] == [end()]
        assert core.told_of(RequestAbandoned) == []

    async def test_what_is_posted_waits_until_the_input_is_over(self) -> None:
        core, driver = make(RequestArrived=lambda _: [start()], LegEnded=lambda _: [start(2)])
        request = Opened(driver)
        request.begin()
        for number in (1, 2):
            driver.post(FirstToken(R1, 1, number))
            assert core.told_of(FirstToken) == []
        driver.run()
        assert core.told_of(FirstToken) == [FirstToken(R1, 1, 1), FirstToken(R1, 1, 2)]

    async def test_an_event_that_is_posted_while_an_effect_is_performed_waits_for_the_next_step(self) -> None:
        class Fails(Opened):
            def on_effect(self, effect: Order) -> None:
                super().on_effect(effect)
                if isinstance(effect, StartLeg):
                    driver.post(LegEnded(R1, effect.attempt, 1, LegResult.FAILED))
                    driver.run()
                    assert core.is_busy is False
                    assert len(core.told_of(LegEnded)) == len(self.orders) - 1, "it waits its turn"

        core, driver = make(
            RequestArrived=lambda _: [start(1)],
            LegEnded=lambda ended: [start(ended.attempt + 1)] if ended.attempt < 3 else [end()],
        )
        request = Fails(driver)
        request.begin()
        assert request.orders == [start(1), start(2), start(3), end()]

    async def test_one_request_per_id_is_open(self) -> None:
        _, driver = make()
        assert not driver.is_open(R1)
        request = Opened(driver)
        request.begin()
        assert driver.is_open(R1)
        driver.over(R1, Opened(driver))
        assert driver.is_open(R1), "another request of this id was over"
        driver.over(R1, request)
        assert not driver.is_open(R1)
        await asyncio.sleep(0)

    async def test_a_request_is_reported_once_observers_have_seen_all_its_steps(self) -> None:
        seen: list[Event] = []

        class Watcher:
            subscriptions: GatewaySubscriptions = {Step: lambda step, _: seen.append(step.event)}  # noqa: RUF012 - a test's

        class Reported(Opened):
            def on_effect(self, effect: Order) -> None:
                super().on_effect(effect)
                driver.over(R1, self)

            def report(self) -> None:
                super().report()
                assert [type(event) for event in seen] == [RequestArrived]

        core = ScriptedCore(RequestArrived=lambda _: [end()])
        driver = Driver(core, Clock(), observers=[Watcher()])
        request = Reported(driver)
        request.begin()
        assert (request.reports, driver.open_requests) == (0, 1), "not within its last step"
        await asyncio.sleep(0)
        assert (request.reports, driver.open_requests) == (1, 0)

    async def test_a_request_that_ends_in_the_turn_of_the_close_is_reported(self) -> None:
        _, driver = make()
        request = Opened(driver)
        request.begin()
        driver.over(R1, request)
        driver.close()
        assert (request.reports, driver.open_requests) == (1, 0)

    async def test_a_start_for_a_request_that_has_gone_is_answered_at_once(self) -> None:
        core, driver = make(DrainRequested=lambda _: [start(7), end()])
        request = Opened(driver)
        request.begin()
        driver.over(R1, request)
        driver.submit(DrainRequested())
        assert [(each.attempt, each.result) for each in core.told_of(LegEnded)] == [(7, LegResult.CANCELLED)]

    async def test_what_a_timer_posts_is_handled_when_it_has_acted(self) -> None:
        core, driver = make()
        acted = asyncio.Event()

        def act() -> None:
            driver.post(FirstToken(R1, 1, 1))
            assert core.told == []
            acted.set()

        driver.after(0.0, act)
        cancelled = driver.after(0.0, lambda: driver.post(FirstToken(R1, 1, 2)))
        cancelled.cancel()
        await acted.wait()
        assert core.told == [FirstToken(R1, 1, 1)]


class TestFailing:
    def failing(self) -> tuple[ScriptedCore, Driver]:
        def fail(_: Event) -> list[Effect]:
            raise AssertionError("counted wrong")

        return make(RequestArrived=lambda _: [start()], DrainRequested=fail)

    async def test_every_request_is_ended_and_nothing_more_is_taken_in(self) -> None:
        core, driver = self.failing()
        request = Opened(driver)
        request.begin()
        driver.submit(DrainRequested())
        assert request.orders[0] == start()
        (last,) = request.orders[1:]
        assert isinstance(last, EndRequest)
        assert last.outcome is Outcome.FAILED_BEFORE_FIRST_BYTE
        request.end_leg()
        driver.run()
        assert core.told[-1] == DrainRequested()

    async def test_a_later_request_is_ended_at_once(self) -> None:
        _, driver = self.failing()
        driver.submit(DrainRequested())
        request = Opened(driver)
        request.begin()
        assert driver.arrived() is None
        (last,) = request.orders
        assert isinstance(last, EndRequest)


async def test_a_request_that_was_left_makes_room_for_the_next_of_its_id_at_once() -> None:
    class Left(Opened):
        def on_effect(self, effect: Order) -> None:
            driver.over(R1, self)

    _, driver = make(RequestAbandoned=lambda _: [end(Outcome.ABANDONED)])
    Left(driver).begin()
    assert driver.is_open(R1)
    driver.post(RequestAbandoned(R1))
    assert not driver.is_open(R1)
