from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from multidict import CIMultiDict

from mesh.admin_server import (
    admin_middlewares,
    credential_of,
    host_in,
    is_this_machine,
    needs,
    open_to_all,
    undeclared_routes,
)
from mesh.operators import Operators
from mesh.operators_config import OperatorsConfig, OperatorTokenConfig, Role


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:9900", "localhost"),
        ("127.0.0.1:9900", "127.0.0.1"),
        ("[::1]:9900", "::1"),
        ("[::1]", "::1"),
        ("evil.example.net:9900", "evil.example.net"),
        ("localhost:9900.evil.example.net", "localhost:9900.evil.example.net"),
        ("evil.example.net:", "evil.example.net:"),
    ],
)
def test_a_host_is_read_without_its_port(header: str, host: str) -> None:
    assert host_in(header) == host


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("", False),
        ("10.0.0.7", False),
        ("0.0.0.0", False),
        ("localhost.evil.example.net", False),
        ("127.0.0.1.evil.example.net", False),
        ("localhost:9900.evil.example.net", False),
    ],
)
def test_only_this_machine_is_this_machine(host: str, is_ours: bool) -> None:
    assert is_this_machine(host) is is_ours


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"X-Api-Key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "other"}, "other"),
        ({"authorization": "Basic abc"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({}, ""),
    ],
)
def test_a_credential_comes_as_either_kind_of_client_sends_it(headers: dict[str, str], expected: str) -> None:
    assert credential_of(CIMultiDict(headers)) == expected


async def test_a_route_that_says_nothing_of_who_may_ask_is_found_and_takes_the_highest_role(tmp_path: Path) -> None:
    for role in Role:
        (tmp_path / role).write_text(role)
    config = OperatorsConfig(tuple(OperatorTokenConfig(role, role, tmp_path / role) for role in Role))

    async def forgotten(_: web.Request) -> web.Response:
        return web.Response()

    @needs(Role.LOOK)
    async def seen(_: web.Request) -> web.Response:
        return web.Response()

    @open_to_all
    async def shell(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=admin_middlewares(Operators(None, config), None))
    for path, handler in (("/forgotten", forgotten), ("/seen", seen), ("/shell", shell)):
        app.router.add_get(path, handler)
    assert sorted(undeclared_routes(app)) == ["GET /forgotten", "HEAD /forgotten"]
    async with TestClient(TestServer(app)) as client:

        async def statuses(path: str) -> list[int]:
            shown = ({"authorization": f"Bearer {token}"} for token in ("", *Role))
            return [(await client.get(path, headers=headers)).status for headers in shown]

        assert await statuses("/forgotten") == [401, 403, 403, 200]
        assert await statuses("/seen") == [401, 200, 200, 200]
        assert await statuses("/shell") == [200, 200, 200, 200]


@pytest.mark.parametrize(
    ("path", "status"), [("/data", 200), ("/refused", 403), ("/none/<script>", 404), ("/page", 200), ("/hosts", 421)]
)
async def test_a_browser_that_is_led_to_an_answer_makes_no_page_of_it(path: str, status: int) -> None:
    @needs(Role.LOOK)
    async def data(_: web.Request) -> web.Response:
        return web.json_response({"name": "<script>"})

    @needs(Role.LOOK)
    async def refused(_: web.Request) -> web.Response:
        raise web.HTTPForbidden

    @open_to_all
    async def page(_: web.Request) -> web.Response:
        return web.Response(headers={"content-security-policy": "script-src 'self'"})

    app = web.Application(middlewares=admin_middlewares(Operators(), ["localhost"]))
    for name, handler in (("/data", data), ("/refused", refused), ("/page", page)):
        app.router.add_get(name, handler)
    headers = {"host": "evil.example.net"} if path == "/hosts" else {}
    async with TestClient(TestServer(app)) as client, client.get(path, headers=headers) as answer:
        assert answer.status == status
        assert answer.headers["x-content-type-options"] == "nosniff"
        own = "script-src 'self'" if path == "/page" else "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["content-security-policy"] == own
