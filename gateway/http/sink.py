"""Sends one answer to one HTTP client. A client that is gone or reads nothing is given up; bytes are never changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from aiohttp import web
from aiohttp.http import StreamWriter
from multidict import CIMultiDict

from gateway.core.effects import EndRequest
from gateway.core.vocabulary import Outcome, RequestId
from gateway.http.errors import ErrorKind, error_body, error_event, error_headers, kind_of
from gateway.http.parse import REQUEST_ID_HEADER
from gateway.http.settings import HttpSettings
from gateway.legs import LegHead, RanAt, RequestSummary

REGION_HEADER = "x-nightside-region"
GATEWAY_HEADER = "x-nightside-gateway"
_NOT_RELAYED = frozenset(
    {
        "connection",
        "content-encoding",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
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

    __slots__ = ("_request", "_request_id", "_settings", "_transport", "_writer", "response")

    def __init__(self, request: web.Request, request_id: RequestId, settings: HttpSettings) -> None:
        self.response: web.StreamResponse | None = None
        self._request = request
        self._request_id = request_id
        self._settings = settings
        self._transport = request.transport
        self._writer: StreamWriter | None = None

    async def start(self, head: LegHead) -> None:
        headers = CIMultiDict(
            (name, value)
            for name, value in head.headers
            if name.lower() not in _NOT_RELAYED and not name.lower().startswith("x-nightside-")
        )
        headers[REQUEST_ID_HEADER] = self._request_id
        headers[GATEWAY_HEADER] = self._settings.gateway_id
        headers[REGION_HEADER] = head.ran_at.place.region
        self.response = web.StreamResponse(status=head.status, headers=headers)
        writer = await self.response.prepare(self._request)
        assert isinstance(writer, StreamWriter), "a response is prepared once"
        self._writer = writer

    async def write(self, data: bytes) -> None:
        writer, transport = self._writer, self._transport
        assert writer is not None, "start comes first"
        if transport is None or transport.is_closing():
            raise ClientGone("the client closed its connection")
        await writer.write(data, drain=False)
        if transport.get_write_buffer_size() > _BUFFERED_BYTES_MAX:
            await self._unless_stalled(writer.drain())

    async def accepted(self) -> None:
        pass

    async def end(self, end: EndRequest, summary: RequestSummary) -> None:
        if self.response is None or self._writer is None:
            self.response = self._error_response(end, summary.ran_at)
        elif end.outcome in _ANSWERED:
            await self._finish(b"")
        elif summary.is_event_stream:
            await self._finish(error_event(end))
        elif self._transport is not None:
            self._transport.abort()  # half an answer must not look like a whole one

    def _error_response(self, end: EndRequest, ran_at: RanAt | None) -> web.Response:
        response = error_response(kind_of(end), self._request_id, self._settings, detail=end.detail)
        if ran_at is not None:
            response.headers[REGION_HEADER] = ran_at.place.region
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


def error_response(
    kind: ErrorKind, request_id: RequestId, settings: HttpSettings, *, detail: str = "", param: str | None = None
) -> web.Response:
    headers = error_headers(kind)
    headers[REQUEST_ID_HEADER] = request_id
    headers[GATEWAY_HEADER] = settings.gateway_id
    headers[REGION_HEADER] = settings.place.region
    return web.Response(status=kind.status, headers=headers, body=error_body(kind, detail, param))
