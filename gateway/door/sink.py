"""Sends one answer to one HTTP client. A client that has left or reads nothing is given up; bytes are never changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web
from aiohttp.http import HttpVersion11

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import LegResult, Outcome, RequestId
from gateway.door.aiohttp_internals import http_date, sent_answer
from gateway.door.errors import ErrorKind, error_headers, kind_of
from gateway.door.settings import HttpSettings
from gateway.door.shapes import Shape, error_body, error_event, refusal_event, refusal_in_shape
from gateway.records.decisions import decision_id
from gateway.request.engine_api import REQUEST_ID_HEADER
from gateway.request.legs import LegFailure, LegHead, RanAt, RequestSummary, SinkGone
from gateway.request.relay import EVENT_STREAM

MESSAGES_REQUEST_ID_HEADER = "request-id"
REGION_HEADER = "x-nightside-region"
GATEWAY_HEADER = "x-nightside-gateway"
DECISION_HEADER = "x-nightside-decision"
MODEL_HEADER = "x-nightside-model"
"""Header that is sent only where the client used an alias of the model."""
SERVER_NAME = "nightside"
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
_BUFFERED_BYTES_MAX = 64 * 1024
"""Bytes unread by the client above which writing waits for it."""
_ANSWERED = (Outcome.COMPLETED, Outcome.CLIENT_ERROR)
_LAST_CHUNK = b"0\r\n\r\n"
_WAITS = b": the request waits\n\n"
"""Comment line: clients of event streams skip it."""
_line_break_in = re.compile("[\r\n\0]").search


class HttpSink:
    """Writes an answer's bytes to the client's transport. `response` is what the handler returns."""

    is_immediate = True

    __slots__ = (
        "_has_begun",
        "_head",
        "_is_chunked",
        "_is_early",
        "_more_headers",
        "_refusal",
        "_request",
        "_request_id",
        "_said",
        "_settings",
        "_shape",
        "_transport",
        "response",
    )

    def __init__(
        self,
        request: web.Request,
        request_id: RequestId,
        settings: HttpSettings,
        shape: Shape,
        more_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`more_headers` is called when the answer begins; its headers are sent beside those that identify the
        request."""
        self.response: web.StreamResponse | None = None
        self._request = request
        self._request_id = request_id
        self._settings = settings
        self._shape = shape
        self._more_headers = more_headers
        self._said: dict[str, str] = {}
        self._refusal: LegHead | None = None
        """Head of an engine's 4xx whose body is still to come, in one piece."""
        self._has_begun = False
        """True once the answer has begun, whatever was sent before it."""
        self._is_early = False
        """True once status and headers were sent before there was an answer."""
        self._head = b""
        """Head that is sent together with the first bytes of the body."""
        self._is_chunked = False
        self._transport = request.transport

    def say(self, name: str, text: str) -> None:
        """Add a header to any answer of an engine."""
        self._said[name] = text.encode().decode("latin-1")

    def say_it_waits(self) -> bool:
        """Send a comment on a stream whose answer has not begun, so that proxies in between see that its connection is
        alive. False once no further comment can be sent."""
        transport = self._transport
        if self._has_begun or self._refusal is not None or transport is None or transport.is_closing():
            return False
        if not self._is_early:
            self._is_early = True
            relayed = [f"content-type: {EVENT_STREAM}; charset=utf-8", "cache-control: no-cache"]
            self._send_head(200, relayed, self._own_headers())
        self.put(_WAITS)
        return True

    async def start(self, head: LegHead) -> None:
        """Begin the answer. Raises LegFailure for a non-stream answer to a client that was told to expect a stream."""
        if head.status >= 400:
            self._refusal = head
        else:
            self._start(head)

    def _start(self, head: LegHead) -> None:
        self._has_begun = True
        if self._is_early:
            if not _is_event_stream(head):
                raise LegFailure(LegResult.FAILED, "an answer in one piece, where the client waits for a stream")
            return
        more = {
            REGION_HEADER: head.ran_at.place.region,
            DECISION_HEADER: decision_id(self._settings.gateway_id, self._request_id, head.attempt, head.leg),
            **self._said,
        }
        own = {**self._own_headers(), **more}
        relayed, has_length = _relayed_lines(head, own)
        self._send_head(head.status, relayed, own, has_length=has_length)

    def _own_headers(self) -> dict[str, str]:
        names = identity_headers(self._request_id, self._settings, self._shape)
        return {"date": http_date(), **names, **self._more_headers()}

    def _send_head(self, status: int, relayed: list[str], own: Mapping[str, str], *, has_length: bool = False) -> None:
        """Prepare status line and headers, which are sent with the first bytes of the body."""
        request = self._request
        is_newest = request.version >= HttpVersion11
        self._is_chunked = is_newest and not has_length
        keep_alive = request.keep_alive and (is_newest or has_length)
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", *relayed]
        lines += [f"{name}: {value}" for name, value in own.items()]
        if self._is_chunked:
            lines.append("transfer-encoding: chunked")
        if keep_alive != is_newest:
            lines.append("connection: keep-alive" if keep_alive else "connection: close")
        self._head = "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace")
        self.response = sent_answer(keep_alive=keep_alive)

    def put(self, data: bytes) -> bool:
        if self._refusal is not None:
            data = self._start_refusal(self._refusal, data)
        transport = self._transport
        if transport is None or transport.is_closing():
            raise SinkGone("the client closed its connection")
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked and data else data
        if self._head:
            framed, self._head = self._head + framed, b""
        transport.write(framed)
        self._request.writer.output_size += len(framed)  # tells aiohttp that an answer has begun
        return transport.get_write_buffer_size() <= _BUFFERED_BYTES_MAX

    async def drain(self) -> None:
        """Wait until the client has read enough; a client that reads nothing for `stall_s` seconds is given up."""
        stalled = asyncio.timeout(self._settings.stall_s)
        try:
            async with stalled:
                await self._request.writer.drain()
        except TimeoutError as error:
            if not stalled.expired():
                raise
            raise self._give_up() from error
        except ConnectionResetError as error:
            raise SinkGone(str(error)) from error

    def _start_refusal(self, head: LegHead, body: bytes) -> bytes:
        self._refusal = None
        if self._is_early:
            self._has_begun = True
            return refusal_event(body, head.status, self._shape, self._request_id)
        body = refusal_in_shape(body, head.status, self._shape, self._request_id)
        kept = tuple(pair for pair in head.headers if pair[0].lower() not in ("content-length", "content-type"))
        own = (("content-type", "application/json"), ("content-length", str(len(body))))
        self._start(replace(head, headers=(*kept, *own)))
        return body

    async def accepted(self) -> None:
        pass

    async def end(self, end: EndRequest, summary: RequestSummary) -> None:
        if self.response is None:
            self.response = self._error_response(end, summary.ran_at)
        elif end.outcome in _ANSWERED:
            await self._finish()
        elif summary.is_event_stream or self._is_early:
            number = summary.output_events
            self.put(error_event(end, self._shape, self._request_id, sequence_number=number))
            await self._finish()
        elif self._transport is not None:
            self._transport.abort()  # keeps half an answer from looking like a whole one

    async def _finish(self) -> None:
        """End the answer. It is complete for the client once it is written; unread bytes may take their time."""
        last = _LAST_CHUNK if self._is_chunked else b""
        self._is_chunked = False
        if last or self._head:
            self.put(last)
        if self._transport is not None and self._transport.get_write_buffer_size() > _BUFFERED_BYTES_MAX:
            await self.drain()

    def _error_response(self, end: EndRequest, ran_at: RanAt | None) -> web.Response:
        response = error_response(kind_of(end), self._request_id, self._settings, detail=end.detail, shape=self._shape)
        if ran_at is not None:
            response.headers[REGION_HEADER] = ran_at.place.region
        if end.attempts:
            last = decision_id(self._settings.gateway_id, self._request_id, end.attempts)
            response.headers[DECISION_HEADER] = last
        if end.outcome is Outcome.REJECTED_DRAINING:
            response.force_close()
        return response

    def _give_up(self) -> SinkGone:
        if self._transport is not None:
            self._transport.abort()
        return SinkGone("the client stopped reading")


def _relayed_lines(head: LegHead, own: Mapping[str, str]) -> tuple[list[str], bool]:
    """Headers of the engine that are passed on to the client, and whether they tell the body's length."""
    lines: list[str] = []
    has_length = False
    for name, value in head.headers:
        lower = name.lower()
        if lower in _NOT_RELAYED or lower in own or lower.startswith(_OURS_PREFIXES):
            continue
        if _line_break_in(name) or _line_break_in(value):
            continue  # would begin a header line that the engine did not send
        has_length = has_length or lower == "content-length"
        lines.append(f"{name}: {value}")
    return lines, has_length


def _is_event_stream(head: LegHead) -> bool:
    return any(
        name.lower() == "content-type" and value.lower().startswith(EVENT_STREAM) for name, value in head.headers
    )


@lru_cache(maxsize=1000)
def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def identity_headers(request_id: RequestId, settings: HttpSettings, shape: Shape) -> dict[str, str]:
    """Headers that identify the request and the gateway; sent on every answer, errors too."""
    headers = {
        REQUEST_ID_HEADER: request_id,
        GATEWAY_HEADER: settings.gateway_id,
        REGION_HEADER: settings.place.region,
    }
    return {**headers, MESSAGES_REQUEST_ID_HEADER: request_id} if shape is Shape.MESSAGES else headers


def error_response(
    kind: ErrorKind,
    request_id: RequestId,
    settings: HttpSettings,
    *,
    detail: str = "",
    param: str | None = None,
    shape: Shape = Shape.OPENAI,
) -> web.Response:
    headers = {"server": SERVER_NAME, **error_headers(kind), **identity_headers(request_id, settings, shape)}
    body = error_body(kind, detail, param, shape=shape, request_id=request_id)
    return web.Response(status=kind.status, headers=headers, body=body)
