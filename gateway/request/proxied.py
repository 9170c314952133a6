"""One request, from its arrival to its last byte: it submits the arrival, follows the core's orders, runs its legs and
ends its client's answer. It never decides where a request goes.

It is a state machine: inputs come from the driver (effects), from its legs, from its client's connection and from
timers, and none of them waits. Each StartLeg is answered by exactly one LegEnded, and the sink is ended exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import urandom
from typing import assert_never

from msgspec.structs import replace

from gateway.core.kernel.effects import AcceptForward, EndRequest, RefuseForward, StartLeg, StopLeg, TakeBackLeg
from gateway.core.kernel.events import ForwardArrived, LegEnded, RequestAbandoned, RequestArrived
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import LegResult, LegRole, Outcome, RefusalReason, RequestProfile, TargetKind
from gateway.request.answer import AnswerSettings, ClientAnswer
from gateway.request.answer_bodies import body_of
from gateway.request.engine_api import UNGENERATING_PATHS
from gateway.request.kept_answer import Hold, KeepAnswer
from gateway.request.leg_answer import LegAnswer
from gateway.request.legs import LegOpener, OutboundRequest, RequestSummary, Sink
from gateway.request.parts import Compare, OnStray, Parts, ignore_stray
from gateway.request.port import Order, Port
from gateway.request.trace_context import RequestTrace


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Dependencies of every request; built once by the composition root."""

    port: Port
    openers: Mapping[TargetKind, LegOpener]
    settings: AnswerSettings = field(default_factory=AnswerSettings)
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
    """Called for each error of this gateway that a request meets."""
    begin_trace: Callable[[OutboundRequest], RequestTrace] | None = None
    """Begins the trace of a request. None: tracing is off, and traceparents pass through unchanged."""
    keep_answer: KeepAnswer | None = None
    """Begins to keep an answer that another leg may have to append to. None: answers are not kept."""
    draw: Callable[[int], bytes] = urandom
    """Draws random bytes."""


class ProxiedRequest:
    """One request of a client, or of a peer that forwards it here."""

    __slots__ = (
        "_answer",
        "_arrival",
        "_arrived_ns",
        "_context",
        "_end",
        "_is_over",
        "_legs",
        "_parts",
        "_record",
        "_sink",
        "_was_stopped",
        "has_left",
        "profile",
        "summary",
    )

    def __init__(
        self,
        context: RequestContext,
        arrival: RequestArrived | ForwardArrived,
        outbound: OutboundRequest,
        sink: Sink,
        *,
        hold: Hold | None = None,
    ) -> None:
        """Prepare the request. `hold`: of the budget in which its body is counted. None: the answer is not kept, and
        nothing can be appended to it."""
        profile = arrival.profile
        if context.prompt_key is not None and (prompt_key := context.prompt_key(profile)):
            profile = replace(profile, prompt_key=prompt_key)
            arrival = replace(arrival, profile=profile)
        self._context = context
        self._arrival = arrival
        self.profile = profile
        self._sink = sink
        generates = not profile.is_control and outbound.path not in UNGENERATING_PATHS
        self.summary = RequestSummary(generates=generates, asked_model=outbound.asked_model)
        """Results so far; complete once the sink has been ended."""
        if context.begin_trace is not None:
            self.summary.trace = context.begin_trace(outbound)
        self._arrived_ns = context.port.now_ns()
        self._answer = ClientAnswer(
            context.port,
            context.settings,
            sink,
            outbound=outbound,
            summary=self.summary,
            arrived_ns=self._arrived_ns,
            hold=hold,
            keep_answer=context.keep_answer,
        )
        self._legs: dict[tuple[int, int], LegAnswer] = {}
        """Legs that are not over, by attempt and leg."""
        self._parts: Parts | None = None
        """State between prefill and decode, once a leg runs only a part."""
        self._record: RequestRecord | None = None
        self._end: EndRequest | None = None
        """The core's final order; the sink is ended once all legs are over."""
        self.has_left = False
        """True once the client has left."""
        self._was_stopped = False
        """True if the leg that ended last was stopped by the core."""
        self._is_over = False

    def begin(self) -> None:
        """Submit the arrival. A request whose id is open here already is refused."""
        port, request_id = self._context.port, self.profile.request_id
        if port.is_open(request_id):
            self._is_over = True
            detail = "a request of this id is here already"
            self._told(self._sink.refused, RefuseForward(request_id, RefusalReason.DUPLICATE, detail))
            return
        port.begin(self, self._arrival)
        if self._record is None:
            self._take_record()

    # Inputs

    def on_effect(self, effect: Order) -> None:
        """Follow an order of the core."""
        if self._record is None:
            self._take_record()
        match effect:
            case StartLeg():
                self._start_leg(effect)
            case StopLeg():
                leg = self._legs.get((effect.attempt, effect.leg))
                if leg is not None and not leg.has_told:
                    leg.stop(is_request_over=self._end is not None)
            case TakeBackLeg():
                leg = self._legs.get((effect.attempt, effect.leg))
                if leg is not None and not leg.has_told and self._end is None:
                    leg.take_back(effect)
            case EndRequest():
                self._end = effect
                for leg in [leg for leg in self._legs.values() if not leg.has_told]:
                    leg.stop(is_request_over=True)
                self._finish_if_done()
            case AcceptForward():
                self._told(self._sink.accepted)
            case RefuseForward():
                self._close()
                self._told(self._sink.refused, effect)
            case _:
                assert_never(effect)

    def on_writable(self) -> None:
        """Go on after the client has read what was sent."""
        for leg in list(self._legs.values()):
            leg.on_writable()

    def client_left(self) -> None:
        """Close all legs, and abandon the request unless the client has its answer."""
        if self.has_left or self._is_over:
            return
        self.has_left = True
        for leg in list(self._legs.values()):
            leg.leave()
        if self._end is None:
            self._context.port.post(RequestAbandoned(self.profile.request_id))
        self._finish_if_done()

    # Legs

    def _start_leg(self, order: StartLeg) -> None:
        whole = order.role is LegRole.WHOLE
        if not whole and self._parts is None:
            context = self._context
            self._parts = Parts(self._answer, context.draw, context.compare, context.on_stray)
        leg = LegAnswer(
            self._answer,
            order,
            body_of if whole or self._parts is None else self._parts.body_of,
            on_over=self._leg_over,
            report_fault=self._context.on_fault,
        )
        self._legs[order.attempt, order.leg] = leg
        if self.has_left:
            leg.leave()
            return
        self.summary.prompt_taken = True
        leg.begin(self._context.openers[order.target.kind], self._outbound_of)

    def _outbound_of(self, order: StartLeg) -> OutboundRequest:
        answer = self._answer
        if not order.segment:
            outbound = answer.outbound
        else:
            assert answer.kept is not None, "an answer that is appended to was kept"
            outbound = answer.kept.outbound
        if order.role is not LegRole.WHOLE and self._parts is not None:
            outbound = self._parts.outbound_of(order, outbound)
        trace = self.summary.trace
        if trace is None:
            return outbound
        return replace(outbound, headers=trace.headers_for(order.attempt, order.leg, outbound.headers), is_traced=True)

    def _leg_over(self, leg: LegAnswer, ended: LegEnded) -> None:
        order, summary = leg.order, self.summary
        if ended.result is not LegResult.COMPLETED and not self.has_left:
            summary.prompt_taken = False  # failed or refused: not charged
            self._was_stopped = ended.result is LegResult.CANCELLED
        summary.attempts.append(f"{order.target}: {ended.result}")
        leg.tell(ended)
        del self._legs[order.attempt, order.leg]
        self._finish_if_done()

    # End

    def _finish_if_done(self) -> None:
        end = self._end
        if end is None or self._legs or self._is_over:
            return
        if self._was_stopped and end.outcome is Outcome.EXPIRED_RUNNING:
            self.summary.prompt_taken = True  # the leg ran until the deadline, which is no failure of its target
        kept = self._answer.kept
        self.summary.is_answer_dropped = kept is not None and kept.is_dropped
        self.summary.duration_ns = self._context.port.now_ns() - self._arrived_ns
        self._close()
        self._told(self._sink.end, end, self.summary)

    def _told(self, tell: Callable[..., None], *words: object) -> None:
        """Call the sink. An error of its own ends nothing else: neither the core nor another request."""
        try:
            tell(*words)
        except Exception as error:  # noqa: BLE001 - any error here is this gateway's own
            if self._context.on_fault is not None:
                self._context.on_fault(error)

    def _close(self) -> None:
        self._is_over = True
        self._context.port.over(self.profile.request_id, self)

    def report(self) -> None:
        """Hand over the request with its record."""
        context, profile, record = self._context, self.profile, self._record
        if record is not None:
            context.port.done(record)
        if self._end is not None and context.on_finished is not None:
            context.on_finished(profile, self._end, self.summary, record)
        elif record is not None and record.refusal is not None and context.on_refused is not None:
            context.on_refused(profile, record)

    def _take_record(self) -> None:
        """Take the record that the core keeps of this request, which has arrived last."""
        record = self._context.port.arrived()
        if record is not None and record.request_id == self.profile.request_id:
            self._record = record
            if record.refusal is None:
                self._context.port.keep(record)
