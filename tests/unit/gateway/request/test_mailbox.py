from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.events import Event
from gateway.core.kernel.effects import AcceptForward, EndRequest, RefuseForward, StartLeg, StopLeg
from gateway.core.kernel.events import LegEnded, RequestAbandoned
from gateway.core.vocabulary import LegResult, Outcome, RefusalReason
from gateway.request.mailbox import Mailbox
from tests.support.orders import R1, end, start


class Opened(Mailbox):
    """Mailbox that takes its orders from the test and records what it tells the core."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.closed: list[Mailbox] = []
        super().__init__(R1, self.tell, self.closed.append)

    def tell(self, event: Event) -> None:
        self.told.append(event)

    @property
    def ended(self) -> list[tuple[int, int, LegResult]]:
        return [(each.attempt, each.leg, each.result) for each in self.told if isinstance(each, LegEnded)]

    @property
    def is_abandoned(self) -> bool:
        return RequestAbandoned(R1) in self.told


async def run_until_interrupted(mailbox: Mailbox, order: StartLeg, during: Callable[[], None]) -> bool:
    """Run a leg that would never end, and `during` within it. Returns True if its scope expired."""
    scope = mailbox.scope_of(order)
    try:
        with scope:
            during()
            await asyncio.Event().wait()
    except TimeoutError:
        return scope.is_expired
    raise AssertionError("a leg without an end has ended")


class TestMailbox:
    async def test_orders_come_in_order_and_wake_the_owner(self) -> None:
        with Opened() as mailbox:
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(mailbox.next())
                await asyncio.sleep(0)
                for order in (AcceptForward(R1), start()):
                    mailbox.deliver(order)
            assert first.result() == AcceptForward(R1)
            assert await mailbox.next() == start()
            mailbox.end_leg(LegEnded(R1, 1, 1, LegResult.COMPLETED))
            mailbox.deliver(end())
            assert await mailbox.next() == end()
        assert mailbox.told == [LegEnded(R1, 1, 1, LegResult.COMPLETED)]
        assert mailbox.closed == [mailbox]

    async def test_an_unread_start_is_answered_when_the_owner_leaves(self) -> None:
        with Opened() as mailbox:
            mailbox.deliver(start())
        assert mailbox.ended == [(1, 1, LegResult.CANCELLED)]
        assert mailbox.is_abandoned

    async def test_starts_ordered_while_the_owner_leaves_are_answered_too(self) -> None:
        class Retried(Opened):
            def tell(self, event: Event) -> None:
                super().tell(event)
                if isinstance(event, LegEnded):
                    self.deliver(start(event.attempt + 1) if event.attempt < 3 else end(Outcome.ABANDONED))

        with Retried() as mailbox:
            mailbox.deliver(start())
        assert [attempt for attempt, _, _ in mailbox.ended] == [1, 2, 3]
        assert not mailbox.is_abandoned
        assert mailbox.end == end(Outcome.ABANDONED)

    async def test_a_refused_forward_is_not_abandoned(self) -> None:
        refusal = RefuseForward(R1, RefusalReason.BUSY, "")
        with Opened() as mailbox:
            mailbox.deliver(refusal)
            assert await mailbox.next() == refusal
        assert mailbox.told == []

    async def test_a_leg_is_answered_once_though_its_owner_left_first(self) -> None:
        with Opened() as mailbox:
            for leg in (1, 2):
                mailbox.deliver(start(leg=leg))
        mailbox.end_leg(LegEnded(R1, 1, 2, LegResult.COMPLETED))
        assert mailbox.ended == [(1, 1, LegResult.CANCELLED), (1, 2, LegResult.CANCELLED)]


class TestLegsBeside:
    async def test_those_that_come_while_the_owner_runs_one_are_run_beside_it(self) -> None:
        beside: list[StartLeg] = []
        with Opened() as mailbox:
            mailbox.deliver(start())
            assert await mailbox.next() == start()
            mailbox.busy(beside.append)
            mailbox.deliver(start(leg=2))
        assert beside == [start(leg=2)]

    async def test_those_that_were_ordered_together_run_together(self) -> None:
        beside: list[StartLeg] = []
        with Opened() as mailbox:
            for leg in (1, 2):
                mailbox.deliver(start(leg=leg))
            assert await mailbox.next() == start()
            mailbox.busy(beside.append)
            mailbox.idle()
            mailbox.deliver(start(leg=3))
            assert await mailbox.next() == start(leg=3)
        assert beside == [start(leg=2)]

    async def test_what_one_of_them_meets_is_raised_where_the_owner_waits(self) -> None:
        with Opened() as mailbox:
            asyncio.get_running_loop().call_soon(mailbox.fail, ConnectionResetError())
            with pytest.raises(ConnectionResetError):
                await mailbox.next()


class TestInterrupting:
    @pytest.mark.parametrize("order", [StopLeg(R1, 1, 1, ""), EndRequest(R1, Outcome.EXPIRED_RUNNING, "", 1)])
    async def test_a_stop_or_the_end_breaks_a_leg_off(self, order: StopLeg | EndRequest) -> None:
        with Opened() as mailbox:
            mailbox.deliver(start())
            assert await mailbox.next() == start()
            assert await run_until_interrupted(mailbox, start(), lambda: mailbox.deliver(order))
            mailbox.end_leg(LegEnded(R1, 1, 1, LegResult.CANCELLED))
            if isinstance(order, EndRequest):
                assert await mailbox.next() == order

    async def test_a_stop_and_the_end_together_are_one_interruption(self) -> None:
        with Opened() as mailbox:
            mailbox.deliver(start())
            loop = asyncio.get_running_loop()
            faults: list[object] = []
            loop.set_exception_handler(lambda _, fault: faults.append(fault))

            def stop_twice() -> None:
                mailbox.scope_of(start()).hurry(0.0)
                mailbox.deliver(StopLeg(R1, 1, 1, ""))
                loop.call_soon(lambda: mailbox.deliver(end()))

            assert await run_until_interrupted(mailbox, start(), stop_twice)
            assert faults == []

    async def test_silence_breaks_a_leg_off_and_progress_does_not(self) -> None:
        told = [1, 2, 3]
        with Opened() as mailbox:
            mailbox.deliver(start())
            scope = mailbox.scope_of(start())
            progress: Callable[[], int] = lambda: told.pop() if len(told) > 1 else told[0]  # noqa: E731
            assert await run_until_interrupted(mailbox, start(), lambda: scope.watch(progress, 0.0))
            assert (scope.is_silent, told) == (True, [1])

    async def test_a_stop_for_an_earlier_attempt_changes_nothing(self) -> None:
        with Opened() as mailbox:
            mailbox.deliver(start(2))
            with mailbox.scope_of(start(2)):
                mailbox.deliver(StopLeg(R1, 1, 1, ""))
                for _ in range(5):
                    await asyncio.sleep(0)

    @pytest.mark.parametrize("order", [StopLeg(R1, 1, 1, ""), EndRequest(R1, Outcome.EXPIRED_RUNNING, "", 1)])
    async def test_a_leg_stopped_before_it_began_is_not_to_begin(self, order: StopLeg | EndRequest) -> None:
        with Opened() as mailbox:
            mailbox.deliver(start())
            mailbox.deliver(order)
            assert await mailbox.next() == start()
            assert mailbox.scope_of(start()).is_stopped

    async def test_a_stop_is_for_one_leg_and_the_end_for_all(self) -> None:
        with Opened() as mailbox:
            for leg in (1, 2):
                mailbox.deliver(start(leg=leg))
            mailbox.deliver(StopLeg(R1, 1, 2, ""))
            scopes = [mailbox.scope_of(start(leg=leg)) for leg in (1, 2)]
            assert [scope.is_stopped for scope in scopes] == [False, True]
            mailbox.deliver(end())
            assert [scope.is_stopped for scope in scopes] == [True, True]

    async def test_the_owner_s_own_cancellation_wins(self) -> None:
        mailbox = Opened()
        entered = asyncio.Event()

        async def owner() -> None:
            with mailbox:
                mailbox.deliver(start())
                with mailbox.scope_of(start()):
                    entered.set()
                    await asyncio.Event().wait()

        task = asyncio.get_running_loop().create_task(owner())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mailbox.ended == [(1, 1, LegResult.CANCELLED)]
        assert mailbox.is_abandoned
