"""The contract between a request's owner and the edges: what a leg's connection gives, and where its answer goes.

`engines/` and `peers/` open legs, `http/` and `peers/` provide sinks; `owner.py` joins them and knows neither.

Three kinds of failure are told apart, by what is raised. A LegFailure is what an opener or a leg found wrong with its
target or with the way to it; or, as INTERNAL, with this gateway. SinkGone means that nobody waits for the answer any
more. Whatever else comes out of an opener, a leg or a sink is an error of this gateway's own: it ends the request with
an error of ours, is reported, and is held against no target. So an opener converts what a target may do to it, and
nothing else: never a wide class of exceptions around code that works on what we send.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.effects import EndRequest, StartLeg
from gateway.core.value import value
from gateway.core.vocabulary import Extra, LegResult, Place, RefusalReason, ReplicaId, RequestProfile, Resumes
from gateway.request.answers import TokenUsage
from gateway.request.side_channels import NOWHERE, SideChannel
from gateway.request.trace_context import RequestTrace

NONCE_BYTES = 16
Headers = tuple[tuple[str, str], ...]
"""Names and values. A value is what `header_values.py` says: its bytes, one character for each."""


@value
class CacheSalt:
    """What keeps a prompt apart from other tenants' in an engine's cache."""

    text: str
    """Letters and digits: it needs no escape in JSON."""
    replaces_own: bool
    """The body names a `cache_salt` itself, of which this one is made."""


@value
class Part:
    """What the owner of a request knows, besides the client's words, when it sends only a part of it to an engine."""

    nonce: bytes
    """Chance, drawn for the request: what both engines have to call it is made of this."""
    told: bytes = b""
    """For a decode: what the prefill's answer says to it, as it came. It tells where a prompt's blocks are: it goes
    into no event, log or record."""
    assembled: bool = False
    """For a decode: it is had as a stream, and put together here for a client who wants none."""


@value
class OutboundRequest:
    """What is sent to a target: the client's own bytes, with only the headers an engine may see."""

    profile: RequestProfile
    path: str
    """Path of the engine API, for example `/v1/chat/completions`; only a GET may carry a query."""
    headers: Headers
    body: bytes
    method: str = "POST"
    stores_response: bool = False
    """The engine will keep the answer under its id, and later requests may refer to it."""
    asked_model: str = ""
    """The client's own name for the model, where `profile` has another: answers go by it."""
    cache_salt: CacheSalt | None = None
    """For engines that take one; other gateways work it out themselves. None: the body goes out as it came."""
    part: Part | None = None
    """Set where the leg is a prefill or a decode."""
    is_traced: bool = False
    """Its traceparent names a span of a gateway's; else a client's, if any."""


@value
class RanAt:
    """Where a leg really ran; for a forward, as the peer told us."""

    replica_id: ReplicaId
    place: Place


@value
class LegHead:
    """Status and headers of an engine's answer, and where it runs."""

    status: int
    headers: Headers
    ran_at: RanAt
    attempt: int = 0
    leg: int = 1
    """Which leg of which attempt brought it; set by whoever opened it."""
    extras: tuple[Extra, ...] = ()
    """What the answer holds only because we asked the engine for it: not for the client."""
    side_channel: SideChannel = NOWHERE
    """Where a prefill worker may have its decode worker fetch what it has read."""


@dataclass(slots=True)
class LegFailure(Exception):
    """A leg that did not give a usable answer. Never CANCELLED: that is the owner's own doing.

    INTERNAL where the opener knows that it is this gateway that lacks something. No detail tells what a client sent.
    """

    result: LegResult
    detail: str
    refusal: RefusalReason | None = None
    is_final: bool = False
    """A peer says that nobody should go on with an answer that it could not go on with."""
    has_reached: bool = True
    """False: nobody took the connection."""
    resumes_used: Resumes | None = None
    """Of a peer: how often it went on there. None: it does not say."""

    def __str__(self) -> str:
        return f"{self.result}: {self.detail}"


class SinkGone(ConnectionResetError):
    """There is nobody left to send an answer to."""


class Leg(Protocol):
    """One open connection. Leaving its context before the end closes it, which aborts the engine's work."""

    @property
    def head(self) -> LegHead: ...

    @property
    def counted(self) -> TokenUsage | None:
        """What a peer's last word says was used, once the body is over: its stream may not say. None of an engine,
        which says it nowhere else."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, in pieces of any size. Raises LegFailure when the target dies or misbehaves
        midway."""
        ...

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Hand on what is still to come of the body, as it arrives, until `take` answers False: then it wants no more
        for now. True when the body is over. Raises what `chunks` and `take` raise, each as it is.

        For streams: where it can, a leg calls `take` right from its socket, with no task to wake in between.
        """
        ...


class LegOpener(Protocol):
    """Opens legs at one kind of target."""

    def open(
        self, order: StartLeg, request: OutboundRequest, *, on_accepted: Callable[[], None]
    ) -> AbstractAsyncContextManager[Leg]:
        """Connect, send, and wait for the head; entering raises LegFailure. `on_accepted` is called once, when the
        target took it."""
        ...


class Sink(Protocol):
    """Where the answer goes: an HTTP client or the gateway that forwarded to us."""

    @property
    def is_immediate(self) -> bool:
        """`start` and `put` never wait: an answer in one piece is on its way before anything else can happen."""
        ...

    async def start(self, head: LegHead) -> None:
        """Send status and headers. Called at most once, and only when the first token, body byte or error body is
        at hand."""
        ...

    def put(self, data: bytes) -> bool:
        """Send body bytes. False: `drain` before the next ones. Raises SinkGone when nobody is there, as `start` and
        `drain` may."""
        ...

    async def drain(self) -> None:
        """Wait until what was put has room on its way to the receiver."""
        ...

    async def accepted(self) -> None:
        """The core accepted a forward: tell the origin. Nothing to do for an HTTP client."""
        ...

    async def end(self, end: EndRequest, summary: RequestSummary) -> None:
        """Finish, once everything that was put is sent. Before `start`, this sends the outcome's error; after it, a
        failure becomes an error event, never a silent end."""
        ...


@dataclass(slots=True)
class RequestSummary:
    """What the owner learnt of a finished request, for the log line, the metrics and a forward's last message."""

    ran_at: RanAt | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_ns: int | None = None
    """From arrival to the first token."""
    duration_ns: int = 0
    started: bool = False
    """True once status and headers went out."""
    is_event_stream: bool = False
    attempts: list[str] = field(default_factory=list)
    """One `target: result` per leg."""
    output_events: int = 0
    """Data events of a stream, so far, whatever they say."""
    content_events: int = 0
    """Those with content, of legs that told no usage: about as many as tokens."""
    answer_bytes: int = 0
    """Of an answer in one piece that told no usage."""
    prompt_taken: bool = False
    """An engine or a peer has the prompt, or had it when everybody left, and has not failed or turned it down."""
    asked_model: str = ""
    """The client's own name for the model, where that is another one."""
    generates: bool = True
    """False: an engine is only asked about what it keeps, or to count."""
    resumes: int = 0
    """How often its answer broke and somebody went on with it."""
    transcript_dropped: bool = False
    """There was no room to keep what was answered."""
    why_unresumed: str = ""
    """Of an answer that broke: why nobody could be asked to go on with it."""
    trace: RequestTrace | None = None
    """None where nothing is traced."""
