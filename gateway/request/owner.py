"""One request's life at the edge: submit it, follow the core's orders, run its legs, close what was opened.

It runs in the handler's own task, its first leg too; only a leg beside another one gets a task. Leaving it early, on
any path, closes the connections to engines and peers and tells the core; it never decides where a request goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from os import urandom
from typing import assert_never

from gateway.core.effects import AcceptForward, EndRequest, RefuseForward, StartLeg
from gateway.core.events import ForwardArrived, LegEnded, RequestArrived
from gateway.core.vocabulary import LegResult, LegRole, Outcome, RefusalReason, RequestProfile, TargetKind
from gateway.ground.clock import Clock
from gateway.request.driver import Driver
from gateway.request.engine_api import UNGENERATING_PATHS
from gateway.request.legs import (
    NONCE_BYTES,
    LegFailure,
    LegOpener,
    OutboundRequest,
    Part,
    RequestSummary,
    Sink,
    SinkGone,
)
from gateway.request.mailbox import LegScope, cancelled
from gateway.request.parts import PartFeed
from gateway.request.relay import Compare, Feed, OnStray, Relay, RelaySettings, ignore_stray, leg_ended
from gateway.request.trace_context import RequestTrace
from gateway.request.transcript import Hold

_CLOSE_WAIT_S = 5.0
"""What legs that are broken off may take to leave; they wait for nothing but their turn."""


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """What every request's owner needs; built once by the composition root."""

    driver: Driver
    clock: Clock
    openers: Mapping[TargetKind, LegOpener]
    start_task: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    """For a leg that runs beside another leg of its request."""
    settings: RelaySettings = field(default_factory=RelaySettings)
    on_finished: Callable[[RequestProfile, EndRequest, RequestSummary], None] | None = None
    """Told once about each request that was ours, whichever way it ended."""
    prompt_key: Callable[[RequestProfile], bytes] | None = None
    """What stands for a prompt in histories; None where nothing of ours keeps any."""
    compare: Compare | None = None
    """How near a prompt that was read for a pool is to the experts of its decode workers; None where no pool asks."""
    on_stray: OnStray = ignore_stray
    on_fault: Callable[[BaseException], None] | None = None
    """Told of every error of our own that a leg has met."""
    begin_trace: Callable[[OutboundRequest], RequestTrace] | None = None
    """None where nothing is traced: then traceparents pass as they came."""


class RequestOwner:
    """Runs one request from its arrival to its last byte."""

    __slots__ = (
        "_arrival",
        "_arrived_ns",
        "_beside",
        "_context",
        "_driver",
        "_mailbox",
        "_nonce",
        "_relay",
        "_sink",
        "_summary",
    )

    def __init__(
        self,
        context: OwnerContext,
        arrival: RequestArrived | ForwardArrived,
        outbound: OutboundRequest,
        sink: Sink,
        *,
        hold: Hold | None = None,
    ) -> None:
        """`hold`: of the room that its body is counted in. None: what is answered is not kept, and cannot go on."""
        self._context = context
        self._driver = context.driver
        if context.prompt_key is not None:
            profile = arrival.profile
            arrival = replace(arrival, profile=replace(profile, prompt_key=context.prompt_key(profile)))
        self._arrival = arrival
        self._sink = sink
        generates = not arrival.profile.is_control and outbound.path not in UNGENERATING_PATHS
        self._summary = RequestSummary(generates=generates, asked_model=outbound.asked_model)
        if context.begin_trace is not None:
            self._summary.trace = context.begin_trace(outbound)
        self._arrived_ns = context.clock.now_ns()
        self._beside: list[asyncio.Task[None]] = []
        """The legs that run in tasks of their own."""
        self._nonce = b""
        """Drawn with the first leg that runs only a part."""
        self._relay = Relay(
            context.driver,
            context.clock,
            context.settings,
            sink,
            outbound=outbound,
            summary=self._summary,
            arrived_ns=self._arrived_ns,
            compare=context.compare,
            on_stray=context.on_stray,
            hold=hold,
        )

    @property
    def profile(self) -> RequestProfile:
        return self._arrival.profile

    @property
    def summary(self) -> RequestSummary:
        """What is known so far; complete once `run` is over."""
        return self._summary

    async def run(self) -> EndRequest | RefuseForward:
        """Returns when the client has its answer. A refused forward is returned untouched: the sink saw nothing of it.

        Cancel it, or let the sink raise, when the client has gone.
        """
        profile = self._arrival.profile
        if self._driver.has_mailbox(profile.request_id):
            return RefuseForward(profile.request_id, RefusalReason.DUPLICATE, "a request of this id is here already")
        self._mailbox = self._driver.open_mailbox(profile.request_id)
        try:
            with self._mailbox:
                try:
                    self._driver.submit(self._arrival)
                    end = await self._follow_orders()
                finally:
                    if self._beside:
                        await self._close_beside()
            if isinstance(end, EndRequest):
                await self._sink.end(end, self._summary)
            return end
        finally:
            self._report()

    async def _follow_orders(self) -> EndRequest | RefuseForward:
        while True:
            order = await self._mailbox.next()
            match order:
                case StartLeg():
                    self._mailbox.busy(self._run_beside)
                    await self._run_leg(order, is_own=True)
                case AcceptForward():
                    await self._sink.accepted()
                case EndRequest() | RefuseForward():
                    return order
                case _:
                    assert_never(order)

    def _report(self) -> None:
        """After the mailbox is closed there is a last word for everything but a refused forward. Whoever is told of it
        has watched the request up to its end."""
        self._summary.transcript_dropped = self._relay.transcript_dropped
        self._summary.duration_ns = self._context.clock.now_ns() - self._arrived_ns
        if self._mailbox.end is not None and self._context.on_finished is not None:
            self._driver.tell_observers()
            self._context.on_finished(self._arrival.profile, self._mailbox.end, self._summary)

    def _run_beside(self, order: StartLeg) -> None:
        """In a task of its own, which answers for the leg even where it is ended before its first step."""
        mailbox = self._mailbox
        task = self._context.start_task(self._run_leg_beside(order))
        task.add_done_callback(
            lambda _: mailbox.end_leg(cancelled(order.request_id, order.attempt, order.leg, "its task was ended"))
        )
        self._beside.append(task)

    async def _run_leg_beside(self, order: StartLeg) -> None:
        """What ends the request is the owner's to know, not the business of whoever holds the task."""
        try:
            await self._run_leg(order, is_own=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, the owner raises it
            self._mailbox.fail(error)

    async def _close_beside(self) -> None:
        """No leg outlives its owner, unless its connection does not let go."""
        for task in self._beside:
            task.cancel()
        await asyncio.wait(self._beside, timeout=_CLOSE_WAIT_S)

    async def _run_leg(self, order: StartLeg, *, is_own: bool) -> None:
        """Run one leg and answer it with its one LegEnded, whatever happens. `is_own`: in the owner's own task.

        `legs.py` says what may be raised in here, and what each means; only what an opener calls a LegFailure can be
        held against a target.
        """
        scope = self._mailbox.scope_of(order)
        feed_of = Feed if order.role is LegRole.WHOLE else PartFeed
        feed = feed_of(self._relay, order, scope, self._mailbox.end_leg)
        ended: LegEnded | None = None
        try:
            if scope.is_stopped:
                ended = leg_ended(order, LegResult.CANCELLED, "stopped")
                return
            self._summary.prompt_taken = True
            with scope:
                opener = self._context.openers[order.target.kind]
                async with opener.open(order, self._outbound_of(order), on_accepted=feed.accepted) as leg:
                    ended = await feed.run(leg)
        except LegFailure as failure:
            ended = feed.broke_off(failure)
        except SinkGone:
            raise
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            ended = self._fault(feed, error)
        except Exception as error:  # noqa: BLE001 - whatever else it is, it is ours
            if isinstance(error, TimeoutError) and scope.is_expired:
                ended = self._broken_off(feed, scope)
            else:
                ended = self._fault(feed, error)
        finally:
            if is_own:
                self._mailbox.idle()
            if ended is None:
                ended = feed.ended_early(LegResult.CANCELLED, "the owner left")
            elif ended.result is not LegResult.COMPLETED and not self._has_run_out(ended):
                self._summary.prompt_taken = False  # turned down or failed: it is nobody's to pay for
            self._summary.attempts.append(f"{order.target}: {ended.result}")
            self._mailbox.end_leg(ended)

    def _broken_off(self, feed: Feed, scope: LegScope) -> LegEnded:
        """From outside. Where the request goes on, so may its answer."""
        if scope.is_silent:
            return feed.broke_off(LegFailure(LegResult.FAILED, "it fell silent"))
        if self._mailbox.end is not None:
            return feed.ended_early(LegResult.CANCELLED, "stopped")
        return feed.broke_off(LegFailure(LegResult.CANCELLED, "stopped"))

    def _outbound_of(self, order: StartLeg) -> OutboundRequest:
        outbound = self._relay.outbound_of(order)
        if order.role is not LegRole.WHOLE:
            outbound = self._part_of(order, outbound)
        trace = self._summary.trace
        if trace is None:
            return outbound
        return replace(outbound, headers=trace.headers_for(order.attempt, order.leg, outbound.headers), is_traced=True)

    def _part_of(self, order: StartLeg, outbound: OutboundRequest) -> OutboundRequest:
        """What is sent to an engine that runs only a part of the request."""
        if not self._nonce:
            self._nonce = urandom(NONCE_BYTES)
        if order.role is not LegRole.DECODE:
            return replace(outbound, part=Part(self._nonce))
        part = Part(self._nonce, self._relay.handed_over, assembled=self._relay.will_assemble(order))
        return replace(outbound, part=part)

    def _has_run_out(self, ended: LegEnded) -> bool:
        """Did it work up to the request's deadline? That is no failure of the target's."""
        end = self._mailbox.end
        return ended.result is LegResult.CANCELLED and end is not None and end.outcome is Outcome.EXPIRED_RUNNING

    def _fault(self, feed: Feed, error: BaseException) -> LegEnded:
        """Its words stay out of what is told of the request: they may quote what the client sent."""
        if self._context.on_fault is not None:
            self._context.on_fault(error)
        return feed.ended_early(LegResult.INTERNAL, f"an error of this gateway's own: {type(error).__name__}")


def _is_cancelled() -> bool:
    """Was this task told to end? A cancelled future that something waits for looks the same, and is no such order."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
