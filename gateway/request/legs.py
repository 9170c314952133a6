"""Interface between a request and the edges: legs, which bring answers, and sinks, which deliver them.

`engines/` and `peers/` open legs, `door/` and `peers/` provide sinks; `proxied.py` joins them and knows neither. All
calls are synchronous, and none waits.

A LegFailure is a fault of the target or of the way to it, or, with result INTERNAL, of this gateway. Any other
exception from an opener or a sink is this gateway's own error: it ends the request with an internal error, is reported,
and is held against no target. An opener must therefore convert only exceptions that a target can cause, never a wide
class of exceptions around code that works on outgoing data.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Protocol

from msgspec import Struct, field

from gateway.core.kernel.effects import EndRequest, RefuseForward, StartLeg
from gateway.core.vocabulary import Extra, LegResult, Notes, Place, RefusalReason, ReplicaId, RequestProfile
from gateway.request.answer_events import TokenUsage
from gateway.request.side_channels import NOWHERE, SideChannel
from gateway.request.trace_context import RequestTrace

NONCE_BYTES = 16
Headers = tuple[tuple[str, str], ...]
"""Header names and values. A value is stored as `header_values.py` defines: its bytes, one character for each."""


class CacheSalt(Struct, frozen=True):
    """Salt that keeps a prompt apart from other tenants' in an engine's prefix cache."""

    text: str
    """Letters and digits only, so that JSON needs no escapes."""
    replaces_own: bool
    """True if the body names a `cache_salt` of its own, from which this one is derived."""


class PartInput(Struct, frozen=True):
    """Additional input for a leg that runs only a prefill or a decode."""

    nonce: bytes
    """Random bytes drawn for the request, from which the id that both engines use is derived."""
    told: bytes = b""
    """Hand-off for a decode, as the prefill's answer gave it. It locates a prompt's KV blocks and must not appear in
    any event, log or record."""
    assembled: bool = False
    """True if a decode is streamed and assembled here for a client that wants the answer in one piece."""


class OutboundRequest(Struct, frozen=True):
    """Request as sent to a target: the client's own bytes, with only the headers that an engine may see."""

    profile: RequestProfile
    path: str
    """Path of the engine API, for example `/v1/chat/completions`; only a GET may carry a query."""
    headers: Headers
    body: bytes
    method: str = "POST"
    stores_response: bool = False
    """True if the engine will keep the answer under its id for later requests."""
    asked_model: str = ""
    """Client's own name for the model, used in answers; empty where `profile` has the same name."""
    cache_salt: CacheSalt | None = None
    """Salt for engines that take one; peers compute their own. None: the body is sent unchanged."""
    part: PartInput | None = None
    """Set for a prefill or a decode."""
    is_traced: bool = False
    """True if traceparent names a span of a gateway; else it is the client's, if any."""


class RanAt(Struct, frozen=True):
    """Replica and place at which a leg ran; for a forward, as the peer reported."""

    replica_id: ReplicaId
    place: Place


class LegHead(Struct, frozen=True):
    """Status and headers of a target's answer, and where it runs."""

    status: int
    headers: Headers
    ran_at: RanAt
    attempt: int = 0
    leg: int = 1
    """Leg of the attempt that brought the answer; set by the code that opened it."""
    extras: tuple[Extra, ...] = ()
    """Members of the answer that this gateway asked the engine for; they are not for the client."""
    side_channel: SideChannel = NOWHERE
    """Addresses from which the decode worker may fetch the prefill worker's KV blocks."""
    identity: str = ""
    """Identity of the model that answers; empty: not known."""


@dataclass(slots=True)
class LegFailure(Exception):
    """Failure of a leg to give a usable answer. CANCELLED is the result of a leg that was stopped.

    The result is INTERNAL where the fault is this gateway's. The detail never quotes client content.
    """

    result: LegResult
    detail: str
    refusal: RefusalReason | None = None
    is_final: bool = False
    """True if a peer reports that no other target must append to its broken answer."""
    has_reached: bool = True
    """False if the connection was refused, so that the target has seen nothing of the request."""
    notes: Notes = attribute(default_factory=dict)
    """Counts that features of the peer report."""

    def __str__(self) -> str:
        return f"{self.result}: {self.detail}"


STOPPED = LegFailure(LegResult.CANCELLED, "stopped")
"""Terminal word of a leg that its request has stopped."""


class LegListener(Protocol):
    """Receiver of a leg's answer: the request that the leg belongs to.

    `on_end`, `on_failed` and `on_fault` are terminal: exactly one of them is called for each leg that `open` has
    returned, and nothing after it. A leg never calls from inside `open`.
    """

    def on_accepted(self) -> None:
        """Take in that a peer has accepted the request. Engines do not say so; their first output implies it."""
        ...

    def on_head(self, head: LegHead) -> None: ...

    def on_data(self, data: bytes) -> None:
        """Take in body bytes, in pieces of any size. After `pause`, a leg may still hand on what it has read already:
        at most one read of its socket."""
        ...

    def on_end(self, counted: TokenUsage | None) -> None:
        """Take in the end of a complete answer. `counted`: token usage from a peer's final message, because its stream
        may not carry it; None for an engine."""
        ...

    def on_failed(self, failure: LegFailure) -> None:
        """Take in that the leg is over without a complete answer."""
        ...

    def on_fault(self, error: Exception) -> None:
        """Take in that the leg is over by an error of this gateway's own."""
        ...


class LegHandle(Protocol):
    """One leg, as the request that it belongs to controls it."""

    def stop(self) -> None:
        """Close the leg at once, which aborts the engine's work. `on_failed` follows, before this returns, unless the
        leg is over already."""
        ...

    def pause(self) -> None:
        """Read no more of the answer for now: its receiver has no room."""
        ...

    def resume(self) -> None: ...


class LegOpener(Protocol):
    """Opener of legs at one kind of target."""

    def open(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:
        """Begin a leg: connect and send. Raises LegFailure where that is impossible already."""
        ...


class Sink(Protocol):
    """Receiver of the answer: an HTTP client or the gateway that forwarded the request. It never raises for a receiver
    that has gone; the transport tells the request (`ProxiedRequest.client_left`), though never from within one of these
    calls."""

    def accepted(self) -> None:
        """Tell the origin that the core accepted its forward. No effect for an HTTP client."""
        ...

    def refused(self, refusal: RefuseForward) -> None:
        """Tell the origin that its forward is refused. Nothing else is called then."""
        ...

    def start(self, head: LegHead) -> None:
        """Send status and headers. Called at most once, and only when the first token, body byte or error body is at
        hand."""
        ...

    def write(self, data: bytes) -> bool:
        """Send body bytes. False: the buffer is full, and the request is told when it has room again
        (`ProxiedRequest.on_writable`)."""
        ...

    def end(self, end: EndRequest, summary: RequestSummary) -> None:
        """Finish after everything written has been sent, and give back what the request held. Before `start`, this
        sends the outcome's error; after it, a failure becomes an error event, never a silent end. Called once, also
        where the receiver has left."""
        ...


class RequestSummary(Struct):
    """Results of a finished request, for the log line, the metrics and a forward's last message."""

    ran_at: RanAt | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_ns: int | None = None
    """Nanoseconds from arrival to the first token."""
    duration_ns: int = 0
    started: bool = False
    """True once status and headers went out."""
    is_event_stream: bool = False
    attempts: list[str] = field(default_factory=list)
    """Entry `target: result` for each leg."""
    output_events: int = 0
    """Number of data events of a stream so far, of any content."""
    content_events: int = 0
    """Number of events with content, of legs without reported usage: about as many as tokens."""
    answer_bytes: int = 0
    """Bytes of an answer in one piece without reported usage."""
    prompt_taken: bool = False
    """True if a target has the prompt, or had it when the client left, and has not failed or refused it."""
    asked_model: str = ""
    """Client's own name for the model, where it differs from the served one."""
    generates: bool = True
    """False for calls that only ask an engine to count or to look up what it keeps."""
    segments: int = 0
    """Number of times that another leg appended to the broken answer."""
    is_answer_dropped: bool = False
    """True if there was no room to keep the answer, so that nothing can be appended to it."""
    notes: dict[str, str] = field(default_factory=dict)
    """Further fields of the request's log line, each named by the feature that gives it."""
    trace: RequestTrace | None = None
    """Trace of the request; None if tracing is off."""
