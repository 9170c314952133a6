from __future__ import annotations

import json
import socket

import aiohttp
import pytest
from aiohttp import web

from gateway.core.vocabulary import GatewayId
from gateway.http import errors
from gateway.http.app import make_runner
from gateway.http.connections import raw_answer
from gateway.http.settings import HttpSettings
from tests.support.core import US


def test_an_answer_without_a_request_is_whole_and_closes() -> None:
    head, _, body = raw_answer(errors.TOO_MANY_CONNECTIONS).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert first == "HTTP/1.1 503 Service Unavailable"
    assert headers["content-length"] == str(len(body))
    assert (headers["connection"], headers["retry-after"]) == ("close", "1")
    assert json.loads(body)["error"]["code"] == "too_many_connections"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux gives up what nobody takes")
async def test_the_system_cuts_a_connection_whose_other_end_takes_nothing() -> None:
    """Whatever is being written: where a handler of ours waits, it waits no longer than this."""
    told: list[int] = []

    async def look(request: web.Request) -> web.Response:
        assert request.transport is not None
        own = request.transport.get_extra_info("socket")
        told.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return web.Response()

    app = web.Application()
    app.router.add_get("/", look)
    runner = make_runner(app, HttpSettings(GatewayId("us-1"), US, stall_s=1.5))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/"):
            assert told == [1500]
    finally:
        await runner.cleanup()
