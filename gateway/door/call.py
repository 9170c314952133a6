"""One call of a client: what it holds of the gateway's limits, and the sink of its answer. Bytes of an answer are never
changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest, RefuseForward
from gateway.core.vocabulary import LegResult, Outcome, RequestId
from gateway.door.body_memory import BodyReservation
from gateway.door.client_access import ClientAccess
from gateway.door.cors import Cors
from gateway.door.errors import INTERNAL, ClientFault, ErrorKind, error_headers, kind_of
from gateway.door.limits import KeyMeter
from gateway.door.parse import Caller, choose_request_id, fresh_request_id
from gateway.door.settings import HttpSettings
from gateway.door.shapes import ErrorShape, error_body, error_event, refusal_event, refusal_in_shape
from gateway.http1.server import Exchange
from gateway.records.decisions import decision_id
from gateway.records.refusals import OnRefused, Refusal
from gateway.request.answer_bodies import EVENT_STREAM
from gateway.request.engine_api import REQUEST_ID_HEADER
from gateway.request.legs import LegFailure, LegHead, RanAt, RequestSummary
from gateway.request.media import Media, MediaTokens
from gateway.request.proxied import ProxiedRequest
from mesh.clock import Clock

MESSAGES_REQUEST_ID_HEADER = "request-id"
REGION_HEADER = "x-nightside-region"
GATEWAY_HEADER = "x-nightside-gateway"
DECISION_HEADER = "x-nightside-decision"
MODEL_HEADER = "x-nightside-model"
"""Header that is sent only where the client used an alias of the model."""
SERVER_NAME = "nightside"
_SECOND_NS = 1_000_000_000
_NOT_RELAYED = frozenset(
    {
        "connection",
        "content-encoding",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "request-id",
        "server",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "x-request-id",
    }
)
"""Headers that belong to the engine's own connection, or that the gateway sets itself."""
_OURS_PREFIXES = ("x-nightside-", "access-control-")
_ANSWERED = (Outcome.COMPLETED, Outcome.CLIENT_ERROR)
_WAITS = b": the request waits\n\n"
"""Comment line: clients of event streams skip it."""
_line_break_in = re.compile("[\r\n\0]").search


@dataclass(frozen=True, slots=True)
class CallContext:
    """Dependencies of every call; built once for a port."""

    settings: HttpSettings
    clock: Clock
    entrance: ClientAccess
    cors: Cors
    media_tokens: MediaTokens
    on_refused: OnRefused


class ClientCall:
    """One call of a client."""

    __slots__ = (
        "_comment_timer",
        "_has_answer",
        "_is_early",
        "_refusal",
        "_said",
        "caller",
        "context",
        "exchange",
        "has_entered",
        "held",
        "media",
        "meter",
        "path",
        "request",
        "shape",
        "taken",
        "task",
        "tokens",
    )

    def __init__(self, context: CallContext, exchange: Exchange, path: str, shape: ErrorShape) -> None:
        self.context = context
        self.exchange = exchange
        self.path = path
        self.shape = shape
        self.caller: Caller | None = None
        """Identity of the client, once it is known."""
        self.meter: KeyMeter | None = None
        """Meter of the client's key; None where no key was needed."""
        self.has_entered = False
        """True while the call counts as running for its key."""
        self.held: BodyReservation | None = None
        self.request: ProxiedRequest | None = None
        self.task: asyncio.Task[None] | None = None
        """Task that waits for something before the request can begin: an issuer, or a large or compressed body."""
        self.tokens: int | None = None
        """Tokens that are reserved for the request; None: none are."""
        self.taken = 0
        """Tokens of these that count against the key's minute."""
        self.media: Media | None = None
        self._said = ""
        self._refusal: LegHead | None = None
        """Head of an engine's 4xx whose body is still to come, in one piece."""
        self._has_answer = False
        """True once the answer has begun, whatever was sent before it."""
        self._is_early = False
        """True once status and headers were sent before there was an answer."""
        self._comment_timer: asyncio.TimerHandle | None = None

    @property
    def request_id(self) -> RequestId:
        return choose_request_id(self.exchange.headers) if self.caller is None else self.caller.request_id

    def say(self, name: str, text: str) -> None:
        """Add a header to any answer of an engine."""
        self._said += f"{name}: {text.encode().decode('latin-1')}\r\n"

    # Answers of this gateway's own

    def more_headers(self) -> Mapping[str, str]:
        """Headers for what is left of the caller's limits, and for CORS."""
        context = self.context
        limits = {} if self.caller is None else context.entrance.headers(self.caller, self.meter)
        return {**limits, **context.cors.headers(self.exchange.headers)} if context.cors.is_on else limits

    def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Give a whole answer with the headers that identify it, and release what the call holds."""
        names = identity_headers(self.request_id, self.context.settings, self.shape)
        more = {"date": http_date(self.context.clock.wall_ns() // _SECOND_NS), "server": SERVER_NAME}
        self.exchange.respond(status, {**names, **self.more_headers(), **headers, **more}, body)
        self.release()

    def begin_body(self, headers: Mapping[str, str], body_bytes: int | None) -> None:
        """Begin an answer with status 200 of this gateway's own, whose body follows in pieces; None: its length is not
        known."""
        told = headers if body_bytes is None else {**headers, "content-length": str(body_bytes)}
        lines = "".join([f"{name}: {text}\r\n" for name, text in told.items()])
        self.exchange.start(200, self._own_lines(self.more_headers()) + lines, has_length=body_bytes is not None)

    def refuse(self, fault: ClientFault, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error, and count it."""
        kind, caller, request_id = fault.kind, self.caller, self.request_id
        tenant = None if caller is None else caller.tenant
        key_id = None if caller is None or caller.key is None else caller.key.key_id
        self.context.on_refused(Refusal(kind.code, kind.status, kind.message, request_id, tenant, key_id))
        if "expect" in self.exchange.headers:
            self.exchange.must_close()  # the body may or may not follow, so the next bytes are ambiguous
        self.give_error(kind, fault.detail, fault.param, headers or {}, request_id)

    def give_error(
        self,
        kind: ErrorKind,
        detail: str = "",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: RequestId | None = None,
    ) -> None:
        request_id = request_id or self.request_id
        body = error_body(kind, detail, param, shape=self.shape, request_id=request_id)
        names = identity_headers(request_id, self.context.settings, self.shape)
        told = {
            "date": http_date(self.context.clock.wall_ns() // _SECOND_NS),
            "server": SERVER_NAME,
            **error_headers(kind),
            **names,
            **self.more_headers(),
            **(headers or {}),
        }
        self.exchange.respond(kind.status, told, body)
        self.release()

    # Life

    def left(self) -> None:
        """Take in that the client has left."""
        if self.task is not None:
            self.task.cancel()
        if self.request is not None:
            self.request.client_left()
        else:
            self.release()

    def release(self) -> None:
        """Give back what the call holds, and drop what refers to it. A second call does nothing."""
        self.exchange.forget()
        self.request = None
        if self._comment_timer is not None:
            self._comment_timer.cancel()
            self._comment_timer = None
        held, self.held = self.held, None
        if held is not None:
            held.close()
        if self.has_entered and self.meter is not None:
            self.has_entered = False
            self.meter.leave()

    def keep_alive(self, silence_s: float) -> None:
        """Send a comment after each silence of this length, until the answer begins."""
        self._comment_timer = asyncio.get_running_loop().call_later(silence_s, self._send_comment, silence_s)

    def _send_comment(self, silence_s: float) -> None:
        """Send a comment on a stream whose answer has not begun, so that proxies in between see that its connection is
        alive."""
        self._comment_timer = None
        if self._has_answer or self._refusal is not None or self.exchange.is_closing:
            return
        if not self._is_early:
            self._is_early = True
            relayed = f"content-type: {EVENT_STREAM}; charset=utf-8\r\ncache-control: no-cache\r\n"
            self.exchange.start(200, relayed + self._own_lines(self.more_headers()), has_length=False)
        self.exchange.write(_WAITS)
        self.keep_alive(silence_s)

    # Sink of the request's answer

    def accepted(self) -> None:
        pass

    def refused(self, refusal: RefuseForward) -> None:  # noqa: ARG002 - of a sink
        self.fail()
        raise AssertionError("only forwards are refused")

    def start(self, head: LegHead) -> None:
        """Begin the answer. Raises LegFailure for a non-stream answer to a client that was told to expect a stream."""
        if head.status >= 400:
            self._refusal = head
        else:
            self._start(head)

    def _start(self, head: LegHead) -> None:
        self._has_answer = True
        if self._is_early:
            if not _is_event_stream(head):
                raise LegFailure(LegResult.FAILED, "an answer in one piece, where the client waits for a stream")
            return
        more = self.more_headers()
        relayed, has_length = _relayed_lines(head, more)
        own = self._own_lines(more, head)
        self.exchange.start(head.status, relayed + own + self._said, has_length=has_length)

    def _own_lines(self, more: Mapping[str, str], head: LegHead | None = None) -> str:
        """Header lines of this gateway: with `head`, those of an engine's answer."""
        settings, request_id = self.context.settings, self.request_id
        region = settings.place.region if head is None else head.ran_at.place.region
        date = http_date(self.context.clock.wall_ns() // _SECOND_NS)
        lines = (
            f"date: {date}\r\n{REQUEST_ID_HEADER}: {request_id}\r\n"
            f"{GATEWAY_HEADER}: {settings.gateway_id}\r\n{REGION_HEADER}: {region}\r\n"
        )
        if self.shape is ErrorShape.MESSAGES:
            lines += f"{MESSAGES_REQUEST_ID_HEADER}: {request_id}\r\n"
        if head is not None:
            lines += f"{DECISION_HEADER}: {decision_id(settings.gateway_id, request_id, head.attempt, head.leg)}\r\n"
        for name, text in more.items():
            lines += f"{name}: {text}\r\n"
        return lines

    def write(self, data: bytes) -> bool:
        if self._refusal is not None:
            data = self._start_refusal(self._refusal, data)
        return self.exchange.write(data)

    def _start_refusal(self, head: LegHead, body: bytes) -> bytes:
        self._refusal = None
        if self._is_early:
            self._has_answer = True
            return refusal_event(body, head.status, self.shape, self.request_id)
        body = refusal_in_shape(body, head.status, self.shape, self.request_id)
        kept = tuple(pair for pair in head.headers if pair[0].lower() not in ("content-length", "content-type"))
        own = (("content-type", "application/json"), ("content-length", str(len(body))))
        self._start(replace(head, headers=(*kept, *own)))
        return body

    def end(self, end: EndRequest, summary: RequestSummary) -> None:
        try:
            self._end(end, summary)
        except Exception:
            self.fail()
            raise

    def fail(self) -> None:
        """End the call after an internal error."""
        if self.exchange.has_begun:
            self.exchange.abort()
            self.release()
        else:
            self.give_error(INTERNAL)

    def _end(self, end: EndRequest, summary: RequestSummary) -> None:
        self._settle(summary)
        exchange = self.exchange
        if exchange.is_over:
            self.release()  # the client has left
        elif not exchange.has_begun:
            self._give_end(end, summary.ran_at)
        elif end.outcome in _ANSWERED:
            self.release()
            exchange.finish()
        elif summary.is_event_stream or self._is_early:
            self.release()
            number = summary.output_events
            exchange.write(error_event(end, self.shape, self.request_id, sequence_number=number))
            exchange.finish()
        else:
            self.release()
            exchange.abort()

    def _settle(self, summary: RequestSummary) -> None:
        """Replace the reservation of tokens by those used, and learn what media count for."""
        request, caller, context = self.request, self.caller, self.context
        assert request is not None, "a request has ended"
        if caller is not None and self.tokens is not None:
            context.entrance.settle(caller, self.meter, request.profile, summary, tokens=self.tokens, taken=self.taken)
        if self.media is not None and not request.profile.follows:
            context.media_tokens.learn(request.profile.model, self.media, summary.prompt_tokens)

    def _give_end(self, end: EndRequest, ran_at: RanAt | None) -> None:
        headers: dict[str, str] = {}
        if ran_at is not None:
            headers[REGION_HEADER] = ran_at.place.region
        if end.attempts:
            headers[DECISION_HEADER] = decision_id(self.context.settings.gateway_id, self.request_id, end.attempts)
        if end.outcome is Outcome.REJECTED_DRAINING:
            self.exchange.must_close()
        self.give_error(kind_of(end), end.detail, headers=headers)


def _relayed_lines(head: LegHead, more: Mapping[str, str]) -> tuple[str, bool]:
    """Headers of the engine that are passed on to the client, and whether they tell the body's length."""
    lines = ""
    has_length = False
    for name, value in head.headers:
        lower = _relayed_as(name)
        if not lower or lower in more:
            continue
        if not value.isprintable() and _line_break_in(value):
            continue  # would begin a header line that the engine did not send
        has_length = has_length or lower == "content-length"
        lines += f"{name}: {value}\r\n"
    return lines, has_length


@lru_cache(maxsize=1000)
def _relayed_as(name: str) -> str:
    """Name of an engine's header in small letters; empty if it is not passed on."""
    lower = name.lower()
    is_dropped = lower in _NOT_RELAYED or lower.startswith(_OURS_PREFIXES) or _line_break_in(name) is not None
    return "" if is_dropped else lower


def _is_event_stream(head: LegHead) -> bool:
    return any(
        name.lower() == "content-type" and value.lower().startswith(EVENT_STREAM) for name, value in head.headers
    )


def identity_headers(request_id: RequestId, settings: HttpSettings, shape: ErrorShape) -> dict[str, str]:
    """Headers that identify the request and the gateway; sent on every answer, errors too."""
    headers = {
        REQUEST_ID_HEADER: request_id,
        GATEWAY_HEADER: settings.gateway_id,
        REGION_HEADER: settings.place.region,
    }
    return {**headers, MESSAGES_REQUEST_ID_HEADER: request_id} if shape is ErrorShape.MESSAGES else headers


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    """Time in HTTP's date format; formatted once a second."""
    return formatdate(second, usegmt=True)


def raw_answer(kind: ErrorKind, settings: HttpSettings) -> bytes:
    """Whole HTTP/1.1 answer without a request, after which the connection is closed."""
    request_id = fresh_request_id()
    body = error_body(kind)
    headers = {
        **error_headers(kind),
        **identity_headers(request_id, settings, ErrorShape.OPENAI),
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = "".join([f"{name}: {text}\r\n" for name, text in headers.items()])
    return f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\r\n{lines}\r\n".encode("latin-1") + body
