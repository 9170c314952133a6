from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gateway.core import events
from gateway.core.effects import AcceptForward, Effect, EndRequest, PublishLoad, RefuseForward, StartLeg, StopLeg
from gateway.core.events import Event
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
    replica_target,
)
from gateway.ground.clock import Clock
from gateway.request.driver import Driver, GatewayCrash
from gateway.request.mailbox import Mailbox
from tests.support.clock import StillClock
from tests.support.core import US, profile
from tests.support.orders import leg_order

R1 = RequestId("r1")
REPORT = LoadReport(GatewayId("gw"), US, 1, accepting=True, assignment_version=1, policy_digest="")

Answer = Callable[[Any], Iterable[Effect]]


class ScriptedCore:
    """Answers each kind of event as the test says, and remembers what it was told."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.told: list[Event] = []
        self.wakeup_ns: int | None = None
        self.wakeup_asked = asyncio.Event()
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
        self.wakeup_asked.set()
        return self.wakeup_ns

    def told_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


def start(attempt: int = 1, leg: int = 1) -> StartLeg:
    return leg_order(R1, leg, replica_target(ReplicaId("a")), attempt, deadline_ns=10**18)


def arrive(driver: Driver) -> None:
    driver.submit(events.RequestArrived(profile(R1), 10**18))


def end(outcome: Outcome = Outcome.COMPLETED) -> EndRequest:
    return EndRequest(R1, outcome, "", 1)


async def run_until_interrupted(mailbox: Mailbox, order: StartLeg, during: Callable[[], None]) -> bool:
    """A leg that would run for ever, and what happens while it does."""
    scope = mailbox.scope_of(order)
    try:
        with scope:
            during()
            await asyncio.Event().wait()
    except TimeoutError:
        return scope.is_expired
    raise AssertionError("a leg without an end has ended")


def make(clock: Clock | None = None, **answers: Answer) -> tuple[ScriptedCore, Driver]:
    core = ScriptedCore(**answers)
    return core, Driver(core, clock or Clock())


class TestSubmitting:
    async def test_events_submitted_inside_a_step_wait_their_turn(self) -> None:
        core = ScriptedCore(DrainRequested=lambda _: [PublishLoad(REPORT)])
        driver = Driver(core, Clock())
        published: list[LoadReport] = []

        def publish(report: LoadReport) -> None:
            published.append(report)
            driver.submit(events.FirstToken(R1, 1, 1))
            assert not core.told_of(events.FirstToken), "submitting from inside a step must not enter the core"

        driver.on_publish(publish)
        driver.submit(events.DrainRequested())
        assert published == [REPORT]
        assert core.told_of(events.FirstToken) == [events.FirstToken(R1, 1, 1)]
        assert driver.crash is None

    async def test_a_request_needs_its_mailbox_first(self) -> None:
        _, driver = make()
        with pytest.raises(AssertionError):
            arrive(driver)


class Watcher:
    """An observer that keeps what it is told, and fails over one kind of event."""

    def __init__(self, fails_over: type[Any] | None = None) -> None:
        self.seen: list[tuple[int, Event, list[Effect]]] = []
        self.fails_over = fails_over

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        if self.fails_over is not None and isinstance(event, self.fails_over):
            raise ValueError("no such label")
        self.seen.append((now_ns, event, effects))

    @property
    def events(self) -> list[Event]:
        return [event for _, event, _ in self.seen]


class TestObserving:
    def watched(self, *watchers: Watcher, **answers: Answer) -> Driver:
        return Driver(ScriptedCore(**answers), StillClock(1_000), observers=watchers)

    def after_a_step(self) -> tuple[Watcher, Driver]:
        watcher = Watcher()
        driver = self.watched(watcher)
        driver.submit(events.TimePassed())
        return watcher, driver

    async def test_observers_see_each_step_once_and_in_order_with_its_effects(self) -> None:
        first, second = Watcher(), Watcher()
        driver = self.watched(first, second, DrainRequested=lambda _: [PublishLoad(REPORT)])
        driver.submit(events.DrainRequested())
        driver.submit(events.TimePassed())
        await asyncio.sleep(0)
        driver.submit(events.FirstToken(R1, 1, 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told = [
            (1_000, events.DrainRequested(), [PublishLoad(REPORT)]),
            (1_000, events.TimePassed(), []),
            (1_000, events.FirstToken(R1, 1, 1), []),
        ]
        assert first.seen == second.seen == told

    async def test_whoever_acts_on_a_step_acts_before_anybody_is_told_of_it(self) -> None:
        watcher = Watcher()
        driver = self.watched(watcher, RequestArrived=lambda _: [start()], LegEnded=lambda _: [end()])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert await mailbox.next() == start()
            assert watcher.events == [], "the owner waits for nothing"
            await asyncio.sleep(0)
            assert [type(event) for event in watcher.events] == [events.RequestArrived]
            mailbox.end_leg(events.LegEnded(R1, 1, 1, LegResult.COMPLETED))

    async def test_they_are_told_before_whatever_comes_in_after_the_step(self) -> None:
        """A page of metrics that is asked for after a step counts that step."""
        watcher, _ = self.after_a_step()
        asked: list[list[Event]] = []
        asyncio.get_running_loop().call_soon(lambda: asked.append(watcher.events))
        await asyncio.sleep(0)
        assert asked == [[events.TimePassed()]]

    async def test_whoever_rests_on_what_they_know_may_have_them_told_at_once(self) -> None:
        watcher, driver = self.after_a_step()
        driver.tell_observers()
        assert watcher.events == [events.TimePassed()]
        driver.submit(events.DrainRequested())
        await asyncio.sleep(0)
        assert watcher.events == [events.TimePassed(), events.DrainRequested()]

    async def test_the_last_steps_are_told_when_the_gateway_stops(self) -> None:
        watcher, driver = self.after_a_step()
        driver.close()
        assert watcher.events == [events.TimePassed()]

    async def test_a_turn_with_very_many_steps_does_not_hold_them_all_back(self) -> None:
        watcher = Watcher()
        driver = self.watched(watcher)
        for number in range(2_000):
            driver.submit(events.FirstToken(R1, number, 1))
        assert len(watcher.events) > 1_000
        await asyncio.sleep(0)
        assert watcher.events == [events.FirstToken(R1, number, 1) for number in range(2_000)]

    async def test_what_came_before_a_failure_is_told_and_the_fatal_step_is_not(self) -> None:
        def fail(_: Event) -> list[Effect]:
            raise AssertionError("counted wrong")

        watcher = Watcher()
        seen_at_crash: list[list[Event]] = []
        core = ScriptedCore(DrainRequested=fail)
        driver = Driver(
            core, StillClock(1_000), observers=[watcher], on_crash=lambda _: seen_at_crash.append(list(watcher.events))
        )
        driver.submit(events.TimePassed())
        driver.submit(events.DrainRequested())
        assert seen_at_crash == [[events.TimePassed()]], "in a journal the fatal step is the last"
        await asyncio.sleep(0)
        assert watcher.events == [events.TimePassed()]

    async def test_a_failing_observer_is_a_failure_too(self) -> None:
        broken, behind = Watcher(fails_over=events.FirstToken), Watcher()
        driver = self.watched(broken, behind)
        for event in (events.TimePassed(), events.FirstToken(R1, 1, 1), events.DrainRequested()):
            driver.submit(event)
        assert not driver.failed.is_set()
        await asyncio.sleep(0)
        assert driver.failed.is_set()
        assert driver.crash is not None
        assert str(driver.crash.error) == "no such label"
        steps = [events.TimePassed(), events.FirstToken(R1, 1, 1), events.DrainRequested()]
        assert [(step.event, step.effects) for step in driver.crash.tail] == [(event, []) for event in steps]
        assert broken.events == [events.TimePassed()]
        assert behind.events == steps, "what was performed is still told to whoever can hear it"

    async def test_an_observer_that_fails_over_what_came_before_a_failure_is_the_one_failure(self) -> None:
        def fail(_: Event) -> list[Effect]:
            raise AssertionError("counted wrong")

        crashes: list[GatewayCrash] = []
        watcher = Watcher(fails_over=events.TimePassed)
        core = ScriptedCore(DrainRequested=fail)
        driver = Driver(core, StillClock(1_000), observers=[watcher], on_crash=crashes.append)
        driver.submit(events.TimePassed())
        driver.submit(events.DrainRequested())
        assert [str(crash.error) for crash in crashes] == ["no such label"]
        assert [step.event for step in crashes[0].tail] == [events.TimePassed()]


class TestMailbox:
    async def test_orders_come_in_order_and_wake_the_owner(self) -> None:
        _, driver = make(RequestArrived=lambda _: [AcceptForward(R1), start()], LegEnded=lambda _: [end()])
        with driver.open_mailbox(R1) as mailbox:
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(mailbox.next())
                await asyncio.sleep(0)
                arrive(driver)
            assert first.result() == AcceptForward(R1)
            assert await mailbox.next() == start()
            mailbox.end_leg(events.LegEnded(R1, 1, 1, LegResult.COMPLETED))
            assert await mailbox.next() == end()
        assert driver.open_requests == 0

    async def test_an_unread_start_is_answered_when_the_owner_leaves(self) -> None:
        core, driver = make(RequestArrived=lambda _: [start()], RequestAbandoned=lambda _: [end(Outcome.ABANDONED)])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
        assert [(each.attempt, each.result) for each in core.told_of(events.LegEnded)] == [(1, LegResult.CANCELLED)]
        assert core.told_of(events.RequestAbandoned) == [events.RequestAbandoned(R1)]
        assert mailbox.end == end(Outcome.ABANDONED)

    async def test_starts_ordered_while_the_owner_leaves_are_answered_too(self) -> None:
        core, driver = make(
            RequestArrived=lambda _: [start(1)],
            LegEnded=lambda event: [start(event.attempt + 1)] if event.attempt < 3 else [end(Outcome.ABANDONED)],
        )
        with driver.open_mailbox(R1):
            arrive(driver)
        assert [each.attempt for each in core.told_of(events.LegEnded)] == [1, 2, 3]
        assert core.told_of(events.RequestAbandoned) == []

    async def test_a_start_for_an_owner_that_has_gone_is_answered_at_once(self) -> None:
        core, driver = make(RequestAbandoned=lambda _: [], DrainRequested=lambda _: [start(7), end()])
        with driver.open_mailbox(R1):
            pass
        driver.submit(events.DrainRequested())
        assert [(each.attempt, each.result) for each in core.told_of(events.LegEnded)] == [(7, LegResult.CANCELLED)]

    async def test_a_refused_forward_is_not_abandoned(self) -> None:
        refusal = RefuseForward(R1, RefusalReason.BUSY, "")
        core, driver = make(DrainRequested=lambda _: [refusal])
        with driver.open_mailbox(R1) as mailbox:
            driver.submit(events.DrainRequested())
            assert await mailbox.next() == refusal
        assert core.told_of(events.RequestAbandoned) == []

    async def test_one_owner_per_request(self) -> None:
        _, driver = make()
        with driver.open_mailbox(R1), pytest.raises(AssertionError):
            driver.open_mailbox(R1)


class TestInterrupting:
    @pytest.mark.parametrize("order", [StopLeg(R1, 1, 1, ""), EndRequest(R1, Outcome.EXPIRED_RUNNING, "", 1)])
    async def test_a_stop_or_the_end_breaks_a_leg_off(self, order: StopLeg | EndRequest) -> None:
        _, driver = make(RequestArrived=lambda _: [start()])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert await mailbox.next() == start()
            assert await run_until_interrupted(mailbox, start(), lambda: mailbox.deliver(order))
            mailbox.end_leg(events.LegEnded(R1, 1, 1, LegResult.CANCELLED))
            if isinstance(order, EndRequest):
                assert await mailbox.next() == order

    async def test_a_stop_and_the_end_together_are_one_interruption(self) -> None:
        _, driver = make(RequestArrived=lambda _: [start()])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            await mailbox.next()
            loop = asyncio.get_running_loop()
            faults: list[object] = []
            loop.set_exception_handler(lambda _, fault: faults.append(fault))

            def stop_twice() -> None:
                mailbox.scope_of(start()).hurry(0.0)
                mailbox.deliver(StopLeg(R1, 1, 1, ""))
                loop.call_soon(lambda: mailbox.deliver(end()))

            assert await run_until_interrupted(mailbox, start(), stop_twice)
            assert faults == []

    async def test_a_stop_for_an_earlier_attempt_changes_nothing(self) -> None:
        _, driver = make(RequestArrived=lambda _: [start(2)])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            await mailbox.next()
            with mailbox.scope_of(start(2)):
                mailbox.deliver(StopLeg(R1, 1, 1, ""))
                for _ in range(5):
                    await asyncio.sleep(0)

    @pytest.mark.parametrize("order", [StopLeg(R1, 1, 1, ""), EndRequest(R1, Outcome.EXPIRED_RUNNING, "", 1)])
    async def test_a_leg_stopped_before_it_began_is_not_to_begin(self, order: StopLeg | EndRequest) -> None:
        _, driver = make(RequestArrived=lambda _: [start(), order])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert await mailbox.next() == start()
            assert mailbox.scope_of(start()).is_stopped

    async def test_a_stop_is_for_one_leg_and_the_end_for_all(self) -> None:
        _, driver = make(RequestArrived=lambda _: [start(), start(leg=2)])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            mailbox.deliver(StopLeg(R1, 1, 2, ""))
            scopes = [mailbox.scope_of(start(leg=leg)) for leg in (1, 2)]
            assert [scope.is_stopped for scope in scopes] == [False, True]
            mailbox.deliver(end())
            assert [scope.is_stopped for scope in scopes] == [True, True]

    async def test_legs_that_come_while_the_owner_runs_one_are_run_beside_it(self) -> None:
        _, driver = make(RequestArrived=lambda _: [start()], DrainRequested=lambda _: [start(leg=2)])
        beside: list[StartLeg] = []
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert await mailbox.next() == start()
            mailbox.busy(beside.append)
            driver.submit(events.DrainRequested())
        assert beside == [start(leg=2)]

    async def test_legs_that_were_ordered_together_run_together(self) -> None:
        _, driver = make(RequestArrived=lambda _: [start(), start(leg=2)], DrainRequested=lambda _: [start(leg=3)])
        beside: list[StartLeg] = []
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert await mailbox.next() == start()
            mailbox.busy(beside.append)
            mailbox.idle()
            driver.submit(events.DrainRequested())
            assert await mailbox.next() == start(leg=3)
        assert beside == [start(leg=2)]

    async def test_what_a_leg_beside_meets_is_raised_where_the_owner_waits(self) -> None:
        _, driver = make()
        with driver.open_mailbox(R1) as mailbox:
            asyncio.get_running_loop().call_soon(mailbox.fail, ConnectionResetError())
            with pytest.raises(ConnectionResetError):
                await mailbox.next()

    async def test_a_leg_is_answered_once_though_its_owner_left_first(self) -> None:
        core, driver = make(RequestArrived=lambda _: [start(), start(leg=2)])
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
        mailbox.end_leg(events.LegEnded(R1, 1, 2, LegResult.COMPLETED))
        assert [(each.leg, each.result) for each in core.told_of(events.LegEnded)] == [
            (1, LegResult.CANCELLED),
            (2, LegResult.CANCELLED),
        ]

    async def test_the_owner_s_own_cancellation_wins(self) -> None:
        core, driver = make(RequestArrived=lambda _: [start()], LegEnded=lambda _: [])
        entered = asyncio.Event()

        async def owner() -> None:
            with driver.open_mailbox(R1) as mailbox:
                arrive(driver)
                await mailbox.next()
                with mailbox.scope_of(start()):
                    entered.set()
                    await asyncio.Event().wait()

        task = asyncio.get_running_loop().create_task(owner())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [each.result for each in core.told_of(events.LegEnded)] == [LegResult.CANCELLED]
        assert core.told_of(events.RequestAbandoned) == [events.RequestAbandoned(R1)]


class TestTimer:
    async def test_time_passes_when_the_core_asked_for_it(self) -> None:
        core, driver = make()
        core.wakeup_ns = 0
        passed = asyncio.Event()

        def sleep_again(_: Event) -> list[Effect]:
            core.wakeup_ns = None
            passed.set()
            return []

        core.answers["TimePassed"] = sleep_again
        driver.submit(events.DrainRequested())
        await passed.wait()
        assert core.told == [events.DrainRequested(), events.TimePassed()]

    async def test_a_timer_that_fires_early_only_arms_the_next(self) -> None:
        clock = StillClock(1_000)
        core, driver = make(clock)
        core.wakeup_ns = clock.now
        driver.submit(events.DrainRequested())
        core.wakeup_ns = clock.now + 1
        core.wakeup_asked.clear()
        await core.wakeup_asked.wait()
        assert core.told == [events.DrainRequested()]
        await asyncio.sleep(0)
        assert driver._timer is not None
        driver.close()

    async def test_an_earlier_wakeup_moves_the_timer_and_a_later_one_does_not(self) -> None:
        clock = StillClock(1_000)
        core, driver = make(clock)
        core.wakeup_ns = clock.now + 10**12
        driver.submit(events.DrainRequested())
        far = driver._timer
        core.wakeup_ns = clock.now + 2 * 10**12
        driver.submit(events.DrainRequested())
        assert driver._timer is far
        core.wakeup_ns = clock.now + 10**11
        driver.submit(events.DrainRequested())
        assert driver._timer is not far
        assert far is not None
        assert far.cancelled()
        driver.close()


class TestFailing:
    def failing(self) -> tuple[ScriptedCore, Driver, list[GatewayCrash]]:
        def fail(_: Event) -> list[Effect]:
            raise AssertionError("counted wrong")

        crashes: list[GatewayCrash] = []
        core = ScriptedCore(RequestArrived=lambda _: [start()], DrainRequested=fail)
        return core, Driver(core, StillClock(1_000), on_crash=crashes.append), crashes

    async def test_the_tail_is_handed_over_with_the_fatal_step_last(self) -> None:
        _, driver, crashes = self.failing()
        driver.submit(events.TimePassed())
        driver.submit(events.DrainRequested())
        assert driver.failed.is_set()
        (crash,) = crashes
        assert str(crash.error) == "counted wrong"
        assert [(step.event, step.effects) for step in crash.tail] == [
            (events.TimePassed(), []),
            (events.DrainRequested(), None),
        ]

    async def test_nobody_is_left_hanging_and_nothing_more_is_taken_in(self) -> None:
        core, driver, _ = self.failing()
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert await mailbox.next() == start()
            assert await run_until_interrupted(mailbox, start(), lambda: driver.submit(events.DrainRequested()))
            mailbox.end_leg(events.LegEnded(R1, 1, 1, LegResult.CANCELLED))
            last = await mailbox.next()
        assert isinstance(last, EndRequest)
        assert last.outcome is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert core.told[-1] == events.DrainRequested()

    async def test_whoever_comes_later_is_told_at_once(self) -> None:
        _, driver, _ = self.failing()
        driver.submit(events.DrainRequested())
        with driver.open_mailbox(R1) as mailbox:
            arrive(driver)
            assert isinstance(await mailbox.next(), EndRequest)

    async def test_the_tail_has_a_bound(self) -> None:
        core, _, _ = self.failing()
        driver = Driver(core, StillClock(1_000), tail_steps=3)
        for _ in range(10):
            driver.submit(events.TimePassed())
        driver.submit(events.DrainRequested())
        assert driver.crash is not None
        assert len(driver.crash.tail) == 4
