"""Life of one leg, seen from its request: from the order to exactly one LegEnded, whatever happens in between.

It reads no socket and no clock. How an answer's bytes are understood is its body's matter (`answer_bodies.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec.structs import replace

from gateway.core.kernel.effects import StartLeg, TakeBackLeg
from gateway.core.kernel.events import LegAccepted, LegEnded
from gateway.core.vocabulary import LegResult, RefusalReason
from gateway.request.answer import ClientAnswer
from gateway.request.answer_events import TokenUsage
from gateway.request.answers import believed
from gateway.request.kept_answer import NoRemainder
from gateway.request.legs import LegFailure, LegHandle, LegHead, LegOpener, OutboundRequest
from gateway.request.port import PortTimer

_NEVER_APPENDED_TO = (LegResult.INTERNAL, LegResult.CANCELLED)
"""Results of legs whose answer is never appended to."""


class AnswerBody(ABC):
    """Body of a leg's answer as it arrives. Its methods raise LegFailure where the leg has failed."""

    @abstractmethod
    def data(self, data: bytes) -> LegEnded | None:
        """Take in a piece. Returns the leg's result once nothing more of its answer matters."""

    @abstractmethod
    def end(self, counted: TokenUsage | None) -> LegEnded:
        """Take in the end of the body."""

    def has_room(self) -> None:  # noqa: B027 - most bodies have nothing to do
        """Go on after the client has read what was sent."""

    def settle(self) -> None:  # noqa: B027 - see `has_room`
        """Count what has passed. Called once, when the leg is over, however it ended."""


BodyOf = Callable[["LegAnswer", LegHead], AnswerBody]
"""Chooses how an answer's body is understood, by its head. Raises LegFailure."""


class LegAnswer:
    """Answer of one leg; the client's share of it goes to the request's `ClientAnswer`."""

    __slots__ = (
        "_body",
        "_body_of",
        "_handle",
        "_is_paused",
        "_on_over",
        "_pieces",
        "_pieces_seen",
        "_report_fault",
        "_timer",
        "answer",
        "has_sent",
        "has_told",
        "identity",
        "is_over",
        "is_theirs",
        "order",
        "result",
    )

    def __init__(
        self,
        answer: ClientAnswer,
        order: StartLeg,
        body_of: BodyOf,
        *,
        on_over: Callable[[LegAnswer, LegEnded], None],
        report_fault: Callable[[BaseException], None] | None,
    ) -> None:
        """Prepare the leg. `on_over` is called once, when the leg is over; `report_fault` for each error of this
        gateway's own."""
        self.answer = answer
        self.order = order
        self._body_of = body_of
        self._on_over = on_over
        self._report_fault = report_fault
        self._body: AnswerBody | None = None
        self._handle: LegHandle | None = None
        self._timer: PortTimer | None = None
        self._pieces = 0
        self._pieces_seen = 0
        self._is_paused = False
        self.is_over = False
        self.has_sent = False
        """True if the client has events of this leg."""
        self.has_told = False
        """True once the core has this leg's LegEnded."""
        self.result: LegEnded | None = None
        """Result, set once the client has all of the answer; what the engine does afterwards does not change it."""
        self.is_theirs = False
        """True if the engine blames the request for breaking off."""
        self.identity = ""
        """Identity of the model that answers, as its head tells it; empty: not known."""

    # Inputs of the request

    def begin(self, opener: LegOpener, outbound_of: Callable[[StartLeg], OutboundRequest]) -> None:
        try:
            self._handle = opener.open(self.order, outbound_of(self.order), self)
        except LegFailure as failure:
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - any other error is this gateway's own
            self._fault(error)

    def stop(self, *, is_request_over: bool) -> None:
        """Stop the leg by the core's order. If the request continues, its answer may too."""
        if self.is_over:
            return
        if is_request_over:
            self._cancel("stopped")
        else:
            self._fail(LegFailure(LegResult.CANCELLED, "stopped"))

    def take_back(self, order: TakeBackLeg) -> None:
        """End the leg at its target by the core's order, if another leg can do what is left: all, or a remainder
        that can be requested. Otherwise it goes on. So does a leg that waits for a slow client: more of its answer, up
        to all, may have arrived here."""
        if self.is_over or self.result is not None or self._is_paused:
            return
        if self.has_sent and not (order.may_append and self._may_be_appended_to() and self._is_as_in(order)):
            return
        ended = leg_ended(self.order, LegResult.TAKEN_BACK, order.detail)
        try:
            if self.has_sent:
                ended = self._with_remainder(ended)
            self._close()
        except NoRemainder:
            pass  # the leg is left alone, since its answer would be lost with it
        except Exception as error:  # noqa: BLE001 - see `begin`
            self._fault(error)
        else:
            self._over(ended)

    def leave(self) -> None:
        """End the leg, since the client has left."""
        if not self.is_over:
            self._cancel("the owner left")

    def on_writable(self) -> None:
        if self._is_paused and not self.is_over:
            self._is_paused = False
            body = self._body
            assert body is not None, "what it sent has filled the client's buffer"
            try:
                body.has_room()
                if self._handle is not None:
                    self._handle.resume()
            except Exception as error:  # noqa: BLE001 - see `begin`
                self._fault(error)

    # Inputs of the leg

    def on_accepted(self) -> None:
        if not self.is_over:
            order = self.order
            self.answer.port.post(LegAccepted(order.request_id, order.attempt, order.leg))

    def on_head(self, head: LegHead) -> None:
        if self.is_over:
            return
        summary = self.answer.summary
        if not summary.started:
            summary.ran_at = head.ran_at
        self.identity = head.identity
        try:
            self._body = self._body_of(self, head)
        except LegFailure as failure:
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - see `begin`
            self._fault(error)

    def on_data(self, data: bytes) -> None:
        body = self._body
        if self.is_over or body is None:
            return
        self._pieces += 1
        try:
            ended = body.data(data)
            if ended is not None:
                self._close()
                self._over(ended)
        except LegFailure as failure:
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - see `begin`
            self._fault(error)

    def on_end(self, counted: TokenUsage | None) -> None:
        if self.is_over:
            return
        body = self._body
        try:
            if body is None:
                raise LegFailure(LegResult.FAILED, "an answer without a head")
            ended = body.end(counted)
            self._handle = None
            self._close()
            self._over(ended)
        except LegFailure as failure:
            self._handle = None
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - see `begin`
            self._handle = None
            self._fault(error)

    def on_failed(self, failure: LegFailure) -> None:
        if not self.is_over:
            self._handle = None
            self._fail(failure)

    def on_fault(self, error: Exception) -> None:
        if not self.is_over:
            self._handle = None
            self._fault(error)

    # Called by the body

    def pause(self) -> None:
        """Read no more until the client has read what was sent."""
        if not self._is_paused:
            self._is_paused = True
            if self._handle is not None:
                self._handle.pause()

    def tell(self, ended: LegEnded) -> None:
        """Report the leg's result as soon as the client has all of the answer, while its connection is still open."""
        if not self.has_told:
            self.has_told = True
            self.answer.port.post(ended)

    def hurry(self) -> None:
        """End the leg soon, with the result that it has: only the reuse of its connection depends on its end."""
        self._set_timer(self.answer.settings.trailer_grace_s, self._grace_is_over)

    def watch(self) -> None:
        """Take the leg to have failed once no data has come for a while; it may take up to twice as long."""
        stall_s = self.answer.settings.engine_stall_s
        if stall_s is not None:
            self._pieces_seen = self._pieces
            self._set_timer(stall_s, self._look)

    def completed(self, usage: TokenUsage | None) -> LegEnded:
        """Result of a leg that has answered."""
        order = self.order
        used = usage or TokenUsage()
        self.answer.note_usage(used)
        return LegEnded(
            order.request_id,
            order.attempt,
            order.leg,
            LegResult.COMPLETED,
            prompt_tokens=used.prompt_tokens,
            output_tokens=used.output_tokens,
        )

    # Internal

    def _look(self) -> None:
        """Waiting for a slow client counts as progress of the engine; the sink has its own limit."""
        self._timer = None
        if self._pieces == self._pieces_seen and not self._is_paused:
            self._fail(LegFailure(LegResult.FAILED, "it fell silent"))
        else:
            self.watch()

    def _grace_is_over(self) -> None:
        self._timer = None
        if not self.is_over:
            self._cancel("stopped")

    def _set_timer(self, delay_s: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.answer.port.after(delay_s, act)

    def _close(self) -> None:
        """End all that the leg does: nothing of it is heard afterwards."""
        assert not self.is_over, "a leg ends once"
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                handle.stop()
        finally:
            self.answer.leave(self.order)
            if self._body is not None:
                self._body.settle()

    def _cancel(self, detail: str) -> None:
        """End a leg whose answer is not wanted any more."""
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - see `begin`
            self._fault(error)
        else:
            self._over(self._ended_early(LegResult.CANCELLED, detail))

    def _fail(self, failure: LegFailure) -> None:
        """End a leg without the client's doing; the answer may go on elsewhere."""
        try:
            self._close()
            ended = self._broke_off(failure)
        except Exception as error:  # noqa: BLE001 - see `begin`
            self._fault(error)
        else:
            self._over(ended)

    def _fault(self, error: BaseException) -> None:
        """Report an internal error. Its message stays out of the request's record, because it may quote client
        content."""
        if self._report_fault is not None:
            self._report_fault(error)
        if not self.is_over:
            try:
                self._close()
            except Exception as another:  # noqa: BLE001 - the leg is over all the same
                self.is_over = True
                if self._report_fault is not None:
                    self._report_fault(another)
        self._over(self._ended_early(LegResult.INTERNAL, f"an error of this gateway's own: {type(error).__name__}"))

    def _over(self, ended: LegEnded) -> None:
        self._body = None  # breaks a reference cycle
        on_over, self._on_over = self._on_over, _ignore
        on_over(self, ended)

    def _ended_early(self, result: LegResult, detail: str, refusal: RefusalReason | None = None) -> LegEnded:
        """Result of a leg whose connection ended before its response, or whose client left. If the client already had
        all of the answer, that result stands."""
        if self.result is not None:
            return self.result
        return replace(leg_ended(self.order, result, detail), refusal=refusal)

    def _may_be_appended_to(self) -> bool:
        """Return true if the client has a part of this leg's answer, and it was kept."""
        return self.has_sent and self.order.keeps_answer and not self.is_theirs

    def _is_as_in(self, order: TakeBackLeg) -> bool:
        """Return true unless the head told another identity of the model than the order rests on."""
        return not self.identity or self.identity == order.identity

    def _broke_off(self, failure: LegFailure) -> LegEnded:
        ended = self._ended_early(failure.result, failure.detail, failure.refusal)
        if ended is self.result:
            return ended
        ended = replace(ended, is_final=failure.is_final, has_reached=failure.has_reached, notes=failure.notes)
        if not self._may_be_appended_to() or failure.result in _NEVER_APPENDED_TO:
            return ended
        try:
            return self._with_remainder(ended)
        except NoRemainder as why:
            self.answer.summary.notes["unresumed"] = str(why)
            return ended

    def _with_remainder(self, ended: LegEnded) -> LegEnded:
        """End with the remainder of the answer, as a request. Raises NoRemainder."""
        kept = self.answer.kept
        if kept is None:
            raise NoRemainder("nothing was kept of it")
        profile = kept.break_off().profile
        return replace(ended, remainder=profile, output_tokens=believed(kept.said_tokens), identity=self.identity)


def _ignore(leg: LegAnswer, ended: LegEnded) -> None:
    """Take the place of a leg's listener once it has been told the end."""


def leg_ended(order: StartLeg, result: LegResult, detail: str) -> LegEnded:
    return LegEnded(order.request_id, order.attempt, order.leg, result, detail=detail)
