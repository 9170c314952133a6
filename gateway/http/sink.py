"""Sends one answer to one HTTP client. A client that is gone or reads nothing is given up; bytes are never changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from aiohttp import web
from aiohttp.http import StreamWriter
from multidict import CIMultiDict

from gateway.core.effects import EndRequest
from gateway.core.vocabulary import Outcome, RequestId
from gateway.decisions import decision_id
from gateway.http.errors import ErrorKind, error_headers, kind_of
from gateway.http.parse import REQUEST_ID_HEADER
from gateway.http.settings import HttpSettings
from gateway.http.shapes import Shape, error_body, error_event, refusal_in_shape
from gateway.legs import LegHead, RanAt, RequestSummary

MESSAGES_REQUEST_ID_HEADER = "request-id"
REGION_HEADER = "x-nightside-region"
GATEWAY_HEADER = "x-nightside-gateway"
DECISION_HEADER = "x-nightside-decision"
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
"""What belongs to the engine's own connection, or is ours to say."""
_BUFFERED_BYTES_MAX = 64 * 1024
"""Above this much unread by the client, writing waits for it."""
_ANSWERED = (Outcome.COMPLETED, Outcome.CLIENT_ERROR)


class ClientGone(ConnectionResetError):
    """There is nobody left to write to."""


class HttpSink:
    """A sink over an aiohttp response. `response` is what the handler returns."""

    __slots__ = ("_refusal", "_request", "_request_id", "_settings", "_shape", "_transport", "_writer", "response")

    def __init__(self, request: web.Request, request_id: RequestId, settings: HttpSettings, shape: Shape) -> None:
        self.response: web.StreamResponse | None = None
        self._request = request
        self._request_id = request_id
        self._settings = settings
        self._shape = shape
        self._refusal: LegHead | None = None
        """An engine's 4xx whose body is still to come, in one piece."""
        self._transport = request.transport
        self._writer: StreamWriter | None = None

    async def start(self, head: LegHead) -> None:
        if head.status >= 400:
            self._refusal = head
        else:
            await self._start(head)

    async def _start(self, head: LegHead) -> None:
        headers = CIMultiDict(
            (name, value)
            for name, value in head.headers
            if name.lower() not in _NOT_RELAYED and not name.lower().startswith("x-nightside-")
        )
        headers.update(identity_headers(self._request_id, self._settings, self._shape))
        headers[REGION_HEADER] = head.ran_at.place.region
        headers[DECISION_HEADER] = decision_id(self._settings.gateway_id, self._request_id, head.attempt)
        self.response = web.StreamResponse(status=head.status, headers=headers)
        writer = await self.response.prepare(self._request)
        assert isinstance(writer, StreamWriter), "a response is prepared once"
        self._writer = writer

    async def write(self, data: bytes) -> None:
        if self._refusal is not None:
            data = await self._start_refusal(self._refusal, data)
        writer, transport = self._writer, self._transport
        assert writer is not None, "start comes first"
        if transport is None or transport.is_closing():
            raise ClientGone("the client closed its connection")
        await writer.write(data, drain=False)
        if transport.get_write_buffer_size() > _BUFFERED_BYTES_MAX:
            await self._unless_stalled(writer.drain())

    async def _start_refusal(self, head: LegHead, body: bytes) -> bytes:
        self._refusal = None
        body = refusal_in_shape(body, head.status, self._shape, self._request_id)
        kept = tuple(pair for pair in head.headers if pair[0].lower() not in ("content-length", "content-type"))
        own = (("content-type", "application/json"), ("content-length", str(len(body))))
        await self._start(replace(head, headers=(*kept, *own)))
        return body

    async def accepted(self) -> None:
        pass

    async def end(self, end: EndRequest, summary: RequestSummary) -> None:
        if self.response is None or self._writer is None:
            self.response = self._error_response(end, summary.ran_at)
        elif end.outcome in _ANSWERED:
            await self._finish(b"")
        elif summary.is_event_stream:
            number = summary.output_events
            await self._finish(error_event(end, self._shape, self._request_id, sequence_number=number))
        elif self._transport is not None:
            self._transport.abort()  # half an answer must not look like a whole one

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

    async def _finish(self, last: bytes) -> None:
        if last:
            await self.write(last)
        assert self.response is not None
        await self._unless_stalled(self.response.write_eof())

    async def _unless_stalled(self, writing: Awaitable[None]) -> None:
        stalled = asyncio.timeout(self._settings.stall_s)
        try:
            async with stalled:
                await writing
        except TimeoutError as error:
            if not stalled.expired():
                raise
            raise self._give_up() from error

    def _give_up(self) -> ClientGone:
        if self._transport is not None:
            self._transport.abort()
        return ClientGone("the client stopped reading")


def identity_headers(request_id: RequestId, settings: HttpSettings, shape: Shape) -> dict[str, str]:
    """By which name a request is known, and who answers; on every answer, errors too."""
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
    headers = {**error_headers(kind), **identity_headers(request_id, settings, shape)}
    body = error_body(kind, detail, param, shape=shape, request_id=request_id)
    return web.Response(status=kind.status, headers=headers, body=body)
