"""Owner of one request at the edge: submits it, follows the core's orders, runs its legs and closes what was opened.

It runs in the handler's own task, including its first leg; only a further leg beside another gets its own task. Leaving
it early, on any path, closes the connections to engines and peers and tells the core. It never decides where a request
goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from os import urandom
from typing import assert_never

from gateway.core.kernel.effects import AcceptForward, EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.events import ForwardArrived, LegEnded, RequestArrived
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import LegResult, LegRole, Outcome, RefusalReason, RequestProfile, TargetKind
from gateway.request.driver import Driver
from gateway.request.engine_api import UNGENERATING_PATHS
from gateway.request.legs import (
    NONCE_BYTES,
    LegFailure,
    LegOpener,
    OutboundRequest,
    PartInput,
    RequestSummary,
    Sink,
    SinkGone,
)
from gateway.request.mailbox import LegScope, cancelled
from gateway.request.parts import PartFeed
from gateway.request.relay import Compare, Feed, OnStray, Relay, RelaySettings, ignore_stray, leg_ended
from gateway.request.trace_context import RequestTrace
from gateway.request.transcript import Hold
from mesh.clock import Clock

_CLOSE_WAIT_S = 5.0
"""Time for cancelled legs to end; they wait only for their turn on the event loop."""


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """Dependencies of every request's owner; built once by the composition root."""

    driver: Driver
    clock: Clock
    openers: Mapping[TargetKind, LegOpener]
    start_task: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    """Starts the task of a leg that runs beside another leg of its request."""
    settings: RelaySettings = field(default_factory=RelaySettings)
    on_finished: Callable[[RequestProfile, EndRequest, RequestSummary, RequestRecord | None], None] | None = None
    """Called once for each request that this gateway took, however it ended. The record is None if the request came
    after a crash of the core."""
    on_refused: Callable[[RequestProfile, RequestRecord], None] | None = None
    """Called once for each forward that the core refused."""
    prompt_key: Callable[[RequestProfile], bytes] | None = None
    """Key of a prompt for output-length histories; None where no history is kept."""
    compare: Compare | None = None
    """Compares a prefilled prompt's expert counts with those of the pool's decode workers; None where no pool needs
    it."""
    on_stray: OnStray = ignore_stray
    on_fault: Callable[[BaseException], None] | None = None
    """Called for each error of this gateway that a leg meets."""
    begin_trace: Callable[[OutboundRequest], RequestTrace] | None = None
    """Begins the trace of a request. None: tracing is off, and traceparents pass through unchanged."""


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
        "_record",
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
        """Prepare the request. `hold`: of the budget in which its body is counted. None: the answer is not kept and
        cannot be resumed."""
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
        """Tasks of the legs that run beside the first one."""
        self._record: RequestRecord | None = None
        self._nonce = b""
        """Random bytes drawn with the first leg that runs only a part."""
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
        """Results so far; complete once `run` is over."""
        return self._summary

    async def run(self) -> EndRequest | RefuseForward:
        """Run until the client has its answer. A refused forward is returned and the sink is not touched.

        Cancel the call, or let the sink raise, when the client has gone.
        """
        profile = self._arrival.profile
        if self._driver.has_mailbox(profile.request_id):
            return RefuseForward(profile.request_id, RefusalReason.DUPLICATE, "a request of this id is here already")
        self._mailbox = self._driver.open_mailbox(profile.request_id)
        try:
            with self._mailbox:
                try:
                    self._record = self._driver.begin(self._arrival)
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
        """Hand over the request with its record: each request but a refused forward has ended once the mailbox is
        closed. Observers are told first, so that they have seen the request up to its end."""
        self._summary.transcript_dropped = self._relay.transcript_dropped
        self._summary.duration_ns = self._context.clock.now_ns() - self._arrived_ns
        context, profile, record = self._context, self._arrival.profile, self._record
        self._driver.tell_observers()
        if record is not None:
            self._driver.done(record)
        if self._mailbox.end is not None and context.on_finished is not None:
            context.on_finished(profile, self._mailbox.end, self._summary, record)
        elif record is not None and record.refusal is not None and context.on_refused is not None:
            context.on_refused(profile, record)

    def _run_beside(self, order: StartLeg) -> None:
        """Start a task for a further leg. The callback ends the leg even if the task is cancelled before its first
        step."""
        mailbox = self._mailbox
        task = self._context.start_task(self._run_leg_beside(order))
        task.add_done_callback(
            lambda _: mailbox.end_leg(cancelled(order.request_id, order.attempt, order.leg, "its task was ended"))
        )
        self._beside.append(task)

    async def _run_leg_beside(self, order: StartLeg) -> None:
        """Run a further leg; its exceptions are raised by the owner, not by the task group."""
        try:
            await self._run_leg(order, is_own=False)
        except Exception as error:  # noqa: BLE001 - the owner raises it
            self._mailbox.fail(error)

    async def _close_beside(self) -> None:
        """Cancel further legs; none outlives its owner by more than the time-out."""
        for task in self._beside:
            task.cancel()
        await asyncio.wait(self._beside, timeout=_CLOSE_WAIT_S)

    async def _run_leg(self, order: StartLeg, *, is_own: bool) -> None:
        """Run one leg and answer it with exactly one LegEnded, whatever happens. `is_own`: it runs in the owner's own
        task.

        `legs.py` defines the exceptions that may be raised here; only a LegFailure can be held against a target.
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
        except Exception as error:  # noqa: BLE001 - any other error is this gateway's own
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
                self._summary.prompt_taken = False  # failed or refused: not charged
            self._summary.attempts.append(f"{order.target}: {ended.result}")
            self._mailbox.end_leg(ended)

    def _broken_off(self, feed: Feed, scope: LegScope) -> LegEnded:
        """End a leg that was stopped from outside. If the request continues, its answer may too."""
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
        """Return the request for an engine that runs only a part of it."""
        if not self._nonce:
            self._nonce = urandom(NONCE_BYTES)
        if order.role is not LegRole.DECODE:
            return replace(outbound, part=PartInput(self._nonce))
        part = PartInput(self._nonce, self._relay.handed_over, assembled=self._relay.will_assemble(order))
        return replace(outbound, part=part)

    def _has_run_out(self, ended: LegEnded) -> bool:
        """Return true if the leg ran until the request's deadline, which is no failure of its target."""
        end = self._mailbox.end
        return ended.result is LegResult.CANCELLED and end is not None and end.outcome is Outcome.EXPIRED_RUNNING

    def _fault(self, feed: Feed, error: BaseException) -> LegEnded:
        """Report an internal error. Its message stays out of the request's record, because it may quote client
        content."""
        if self._context.on_fault is not None:
            self._context.on_fault(error)
        return feed.ended_early(LegResult.INTERNAL, f"an error of this gateway's own: {type(error).__name__}")


def _is_cancelled() -> bool:
    """Return true if this task was cancelled. A cancelled future that the task awaits raises the same exception and
    does not count."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
