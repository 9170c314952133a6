"""Requests of a simulated gateway: the production `ProxiedRequest` with legs, sinks and a port in virtual time.

A stream is the bytes that an engine sends around its tokens: the event with the first token, and what follows the
last. An answer in one piece comes with its last token, with head and body together. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from zlib import crc32

import msgspec
from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.events import LegProgress, ResponseStored
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LegRole,
    Notes,
    Outcome,
    Place,
    PoolName,
    RefusalReason,
    RequestId,
    Target,
)
from gateway.request import legs
from gateway.request.answer_events import TokenUsage
from gateway.request.kept_answer import NoRemainder, SegmentAdapter
from gateway.request.legs import STOPPED, LegFailure, LegHead, LegListener, OutboundRequest, RequestSummary
from gateway.request.port import Port
from gateway.request.progress import Count, ProgressBoard
from gateway.request.proxied import ProxiedRequest
from gateway.request.side_channels import NOWHERE
from loadgen.engine.vocabulary import Rejection
from loadgen.simulator.client_requests import ClientRequest, SimRanAt, Upstream
from loadgen.simulator.decode_inputs import expert_counts_of
from loadgen.simulator.engines import EngineRun, SimReplica
from loadgen.simulator.network import NetworkLine

_EVENT_STREAM = (("content-type", "text/event-stream"),)
_JSON = (("content-type", "application/json"),)
_FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
_STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
_DONE = b"data: [DONE]\n\n"
_END = _STOP + _DONE
NOT_ACCEPTED = "the peer neither accepted nor refused in time"


class Home(Protocol):
    """Gateway that a leg belongs to."""

    @property
    def now_ns(self) -> int: ...

    @property
    def follows_answers(self) -> bool: ...

    @property
    def wants_counts(self) -> bool: ...

    @property
    def progress(self) -> SimProgress: ...

    def turn_over(self) -> None:
        """Hand the core what was posted."""
        ...

    def settle(self, sink: SimSink, *, is_whole: bool) -> None:
        """Report the tokens that a request has used."""
        ...


class SimSink:
    """Receiver of one request's answer: its client, or the gateway that forwarded it."""

    __slots__ = (
        "_error",
        "_head",
        "client_request",
        "has_begun",
        "home",
        "legs",
        "line",
        "ran_at",
        "reading",
        "request",
        "said",
        "upstream",
    )

    def __init__(
        self, home: Home, client_request: ClientRequest, line: NetworkLine, upstream: Upstream, said: int = 0
    ) -> None:
        self.home = home
        self.client_request = client_request
        self.line = line
        self.upstream = upstream
        self.said = said
        """Tokens of the answer that exist already: the next run writes from there on."""
        self.request: ProxiedRequest | None = None
        self.legs: list[SimLeg] = []
        """Legs that are not over."""
        self.reading: EngineRun | None = None
        """Latest run that computed the prompt for a decode worker."""
        self.ran_at: SimRanAt | None = None
        """Engine whose first token is being reported."""
        self.has_begun = False
        """True once a first token was reported upstream."""
        self._head: LegHead | None = None
        self._error: tuple[LegHead, bytes] | None = None

    @property
    def is_heard(self) -> bool:
        """True while reports still reach a client."""
        if isinstance(self.upstream, SimPeerLeg):
            return not self.upstream.is_over and self.upstream.sink.is_heard
        return self.client_request.ended_ns is None

    def accepted(self) -> None:
        self.line.to_near(self.upstream.forward_accepted)

    def refused(self, refusal: RefuseForward) -> None:
        self.line.to_near(self.upstream.forward_refused, refusal.reason, refusal.detail)

    def start(self, head: LegHead) -> None:
        self._head = head

    def write(self, data: bytes) -> bool:
        head = self._head
        assert head is not None, "an answer begins with its head"
        if head.status >= 400:
            self._error = (head, data)
        elif not self.has_begun:
            self.has_begun = True
            assert self.ran_at is not None, "a token comes from an engine"
            self.line.to_near(self.upstream.first_token, self.ran_at)
        return True

    def end(self, end: EndRequest, summary: RequestSummary) -> None:  # noqa: ARG002 - counts are the engine's own here
        assert self.request is not None, "it was begun"
        if not self.request.has_left:
            if isinstance(self.upstream, SimPeerLeg):
                self.upstream.error = self._error
            self.line.to_near(self.upstream.ended, end.outcome, end.detail, end.notes)
        if end.is_charged:
            self.home.settle(self, is_whole=end.outcome is Outcome.COMPLETED)


class SimLeg:
    """One leg, as the gateway that opened it sees it. Reports that arrive after its end are ignored."""

    __slots__ = ("has_begun", "home", "is_over", "line", "listener", "order", "port", "said", "sink")

    def __init__(self, home: Home, port: Port, sink: SimSink, order: StartLeg, listener: LegListener) -> None:
        self.home = home
        self.port = port
        self.sink = sink
        self.order = order
        self.listener = listener
        self.is_over = False
        self.has_begun = False
        """True once its first token has arrived."""
        self.said = sink.said
        self.line: NetworkLine | None = None
        sink.legs.append(self)

    # Handle of the request

    def stop(self) -> None:
        if not self.is_over:
            self._over()
            if self.line is not None:
                self.line.close_near("cancelled")
            self.listener.on_failed(STOPPED)

    def pause(self) -> None:
        raise AssertionError("clients of the simulator read at once")

    def resume(self) -> None:
        raise AssertionError("clients of the simulator read at once")

    # Reports

    def broke(self, detail: str) -> None:
        """End the leg as a connection that breaks, which is within an event and not between two."""
        if not self.is_over:
            self._break_within_an_event()
        self._fail(LegFailure(LegResult.FAILED, detail))

    def drop(self, detail: str) -> None:
        """Forget the leg with its gateway's process: the other end of its line is told."""
        self.is_over = True
        if self.line is not None:
            self.line.close_near(detail)

    def _break_within_an_event(self) -> None:
        if self.has_begun:
            self.listener.on_data(_FIRST[: self._cut()])

    def _cut(self) -> int:
        """Number of bytes that arrive of the event in which the leg breaks: any, from none to all but one."""
        order = self.order
        return crc32(f"{order.request_id}.{order.attempt}.{order.leg}".encode()) % len(_FIRST)

    def _over(self) -> None:
        self.is_over = True
        self.sink.legs.remove(self)

    def _fail(self, failure: LegFailure) -> None:
        if self.is_over:
            return
        self._over()
        if self.line is not None:
            self.line.finish()
        self.listener.on_failed(failure)
        self.home.turn_over()

    @property
    def is_whole(self) -> bool:
        """True if the answer comes in one piece."""
        return not self.sink.client_request.profile.stream

    def _begin(self, ran_at: SimRanAt, place: Place) -> None:
        """Report the first token. Of an answer in one piece nothing is heard yet."""
        self.sink.ran_at = ran_at
        if not self.is_whole:
            self._open(_EVENT_STREAM, ran_at, place)
            self.listener.on_data(_FIRST)
            self.home.turn_over()

    def _open(self, headers: legs.Headers, ran_at: SimRanAt, place: Place) -> None:
        self.has_begun = True
        order, client_request = self.order, self.sink.client_request
        if client_request.is_stored:
            self.port.post(ResponseStored(order.request_id, order.attempt, order.leg, client_request.response_id))
        head = self._head(200, headers, legs.RanAt(ran_at.replica_id, place))
        self.listener.on_head(replace(head, identity=ran_at.identity) if ran_at.identity else head)

    def _answer(self, place: Place) -> None:
        """Report the rest of a stream, or all of an answer in one piece, and the end."""
        if not self.is_whole:
            self._complete(self._end_of_stream())
            return
        assert self.sink.ran_at is not None, "its first token was written"
        self._open(_JSON, self.sink.ran_at, place)
        self._complete(_whole(self._usage()))

    def _complete(self, *pieces: bytes) -> None:
        """Report the rest of an answer and its end."""
        self._over()
        for data in pieces:
            self.listener.on_data(data)
        if self.line is not None:
            self.line.finish()
        self.listener.on_end(None)
        self.home.turn_over()

    def _refuse(self, head: LegHead, body: bytes) -> None:
        """Report an error that is about the request."""
        self.listener.on_head(head)
        self._complete(body)

    def _head(self, status: int, headers: legs.Headers, ran_at: legs.RanAt) -> LegHead:
        return LegHead(status, headers, ran_at, self.order.attempt, self.order.leg, side_channel=NOWHERE)

    def _end_of_stream(self) -> bytes:
        """Bytes behind the last token."""
        usage = self._usage()
        if not usage:
            return _END
        return b'%bdata: {"choices":[],"usage":%b}\n\n%b' % (_STOP, msgspec.json.encode(usage), _DONE)

    def _usage(self) -> dict[str, int]:
        """Counts of an engine, which are told only where they are of use: for pools chosen by length, for decode
        workers, where answers cost money, or where engines tell of their caches."""
        client_request, role = self.sink.client_request, self.order.role
        if role is LegRole.DECODE:
            return {"completion_tokens": client_request.output_tokens}
        if self.order.decision.pool is None and not self.home.wants_counts:
            return {}
        return {"completion_tokens": client_request.output_tokens, "prompt_tokens": client_request.prompt_tokens}


def _whole(usage: dict[str, int]) -> bytes:
    """Body of an answer in one piece."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]
    return msgspec.json.encode({"choices": choices} | ({"usage": usage} if usage else {}))


class SimEngineLeg(SimLeg):
    """Leg at an engine."""

    __slots__ = ("engine", "run", "run_id")

    def __init__(
        self,
        home: Home,
        port: Port,
        sink: SimSink,
        order: StartLeg,
        listener: LegListener,
        *,
        engine: SimReplica,
        run_id: str,
    ) -> None:
        super().__init__(home, port, sink, order, listener)
        self.engine = engine
        self.run_id = run_id
        self.run: EngineRun | None = None
        """Run that writes the answer, where its progress is followed."""

    def first_token(self, ran_at: SimRanAt) -> None:
        if self.is_over:
            return
        if self.order.role is LegRole.DECODE:
            self.home.progress.decodes(self)
        if not self.is_whole:
            self._follow()
        self._begin(ran_at, self.engine.spec.place)

    def _follow(self) -> None:
        """Note the run that writes the answer from here on, for the client's progress."""
        if self.run is not None and self.home.follows_answers and self.sink.is_heard:
            self.sink.client_request.told.begins(self.said, self.run, self.engine, self.home.now_ns)

    def _break_within_an_event(self) -> None:
        if self.is_whole and self.order.role is not LegRole.PREFILL:
            return
        if not self.has_begun and self._cut():
            headers = _JSON if self.order.role is LegRole.PREFILL else _EVENT_STREAM
            ran_at = legs.RanAt(self.engine.replica_id, self.engine.spec.place)
            self.listener.on_head(self._head(200, headers, ran_at))
            self.listener.on_data(_FIRST[: self._cut()])
        else:
            super()._break_within_an_event()

    def finished(self) -> None:
        if self.is_over:
            return
        if self.order.role is not LegRole.PREFILL:
            if self.is_whole:
                self._follow()
            self._answer(self.engine.spec.place)
            return
        self.listener.on_head(self._head(200, _JSON, legs.RanAt(self.engine.replica_id, self.engine.spec.place)))
        usage = msgspec.json.encode({"prompt_tokens": self.sink.client_request.prompt_tokens})
        told = expert_counts_of(self.sink.client_request.whole)
        self._complete(b'{"choices":[],"kv_transfer_params":%b,"usage":%b}' % (told, usage))

    def rejected(self, rejection: Rejection, limit_tokens: int) -> None:
        """End the leg after an engine's rejection: a full queue is no failure, and excess length is the client's
        error."""
        if self.is_over:
            return
        if rejection is Rejection.QUEUE_FULL:
            self._fail(LegFailure(LegResult.BUSY, rejection))
            return
        client_request = self.sink.client_request
        asked = client_request.prompt_tokens + client_request.output_tokens
        message = f"This model's maximum context length is {limit_tokens} tokens. However, you requested {asked} tokens"
        error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
        ran_at = legs.RanAt(self.engine.replica_id, self.engine.spec.place)
        self._refuse(self._head(400, _JSON, ran_at), msgspec.json.encode({"error": error}))


class SimPeerLeg(SimLeg):
    """Leg at another gateway, and receiver of that gateway's answer."""

    __slots__ = ("error", "home_id", "is_accepted", "place")

    def __init__(
        self,
        home: Home,
        port: Port,
        sink: SimSink,
        order: StartLeg,
        listener: LegListener,
        *,
        home_id: GatewayId,
        place: Place,
    ) -> None:
        super().__init__(home, port, sink, order, listener)
        self.home_id = home_id
        self.place = place
        """Place of the other gateway's engines."""
        self.is_accepted = False
        self.error: tuple[LegHead, bytes] | None = None
        """Error about the request that the other gateway's engine gave, once the answer has ended."""

    def forward_accepted(self) -> None:
        if not self.is_over:
            self.is_accepted = True
            self.listener.on_accepted()
            self.home.turn_over()

    def forward_refused(self, reason: RefusalReason, detail: str) -> None:
        self._fail(LegFailure(LegResult.REFUSED, detail, reason))

    def first_token(self, ran_at: SimRanAt) -> None:
        if not self.is_over:
            self._begin(ran_at, self.place)

    def ended(self, outcome: Outcome, detail: str, notes: Notes) -> None:
        """End the leg with a peer's final outcome."""
        if self.is_over:
            return
        result, refusal, detail = leg_end_of(outcome, detail)
        if result is LegResult.COMPLETED:
            self._answer(self.place)
        elif self.error is not None:
            self._refuse(*self.error)
        else:
            self._fail(LegFailure(result, detail, refusal, notes=notes))

    def not_accepted_in_time(self) -> None:
        if not self.is_over and not self.is_accepted:
            if self.line is not None:
                self.line.close_near(NOT_ACCEPTED)
            self._fail(LegFailure(LegResult.FAILED, NOT_ACCEPTED))

    def stop(self) -> None:
        self._forget_what_is_on_its_way()
        super().stop()

    def _fail(self, failure: LegFailure) -> None:
        self._forget_what_is_on_its_way()
        super()._fail(failure)

    def _forget_what_is_on_its_way(self) -> None:
        """Reset the answer's progress if a forward ended before its first token: tokens that the peer still sends are
        not heard."""
        if not self.is_over and not self.has_begun and self.home.follows_answers and self.sink.is_heard:
            self.sink.client_request.told.comes_no_further(self.said)


class _AsItIs:
    """Rewriter of an answer's rest that changes nothing: simulated answers have no text."""

    @staticmethod
    def adapt(block: bytes) -> bytes:
        return block

    @staticmethod
    def close() -> bytes:
        return b""

    @staticmethod
    def usage_of_all(usage: TokenUsage | None) -> TokenUsage | None:
        return usage


class SimContinuation:
    """Progress of one answer in place of its transcript."""

    is_dropped = False

    def __init__(self, sink: SimSink, outbound: OutboundRequest, put: Callable[[bytes], bool]) -> None:
        self.voice = put
        self.outbound = outbound
        self._sink = sink

    def keep(self, block: bytes) -> None:
        pass

    def break_off(self) -> OutboundRequest:
        sink = self._sink
        client_request = sink.client_request
        if not sink.is_heard:
            raise NoRemainder("no client hears the answer")
        said = client_request.told.now
        if client_request.is_stored or not 0 < said < client_request.output_tokens:
            client_request.told.breaks += 1
            raise NoRemainder("nothing of it is left, or nothing was said")
        sink.said = client_request.told.breaks_off(sink.home.now_ns)
        self.outbound = replace(self.outbound, profile=client_request.rest(said))
        return self.outbound

    @property
    def said_tokens(self) -> int | None:
        """Not told: an engine's counts are of no use for answers that go on."""
        return None

    @staticmethod
    def adapter(order: StartLeg, head: LegHead) -> SegmentAdapter:  # noqa: ARG004
        return _AsItIs()


class SimProgress(ProgressBoard):
    """Progress of decodes, known exactly from the modelled workers."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[tuple[RequestId, int], tuple[SimReplica, str]] = {}

    def decodes(self, leg: SimEngineLeg) -> None:
        """Note the run of a leg that has begun to decode."""
        self._runs[leg.order.request_id, leg.order.attempt] = leg.engine, leg.run_id

    def begins(self, request_id: RequestId, attempt: int, pool: PoolName | None, target: Target, events: Count) -> None:
        pass

    def ends(self, request_id: RequestId, attempt: int) -> None:
        self._runs.pop((request_id, attempt), None)

    def sample(self, pool: PoolName) -> tuple[LegProgress, ...]:
        return tuple(
            LegProgress(request_id, attempt, engine.generated(run_id))
            for (request_id, attempt), (engine, run_id) in self._runs.items()
            if engine.spec.pool == pool
        )
