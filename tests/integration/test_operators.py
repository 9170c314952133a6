"""Operators of different roles at the admin ports of a gateway and of a controller: permissions of each role, and the
identity on record.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from controller.app import ControllerHandle, serve_controller
from controller.ctl.commands import ctl
from gateway.app.gateway import GatewayHandle, serve_gateway
from mesh.admin_client import TOKEN_VARIABLE
from mesh.admin_server import undeclared_routes
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.operators_config import OperatorsConfig, OperatorTokenConfig, Role
from tests.support.controllers import read_file
from tests.support.core import US
from tests.support.gateways import region_config, write_policy

ADMIN = "has-all"
STATUSES = {"": 401, "wrong": 401}
LOCKDOWN = ("POST", "/admin/lockdown", {"active": True, "reason": "drill"})


def tokens(folder: Path) -> OperatorsConfig:
    for role in Role:
        (folder / f"{role}.token").write_text(role)
    return OperatorsConfig(tuple(OperatorTokenConfig(f"who-{role}", role, folder / f"{role}.token") for role in Role))


@asynccontextmanager
async def gateway(folder: Path, log: io.StringIO | None = None) -> AsyncIterator[GatewayHandle]:
    keys = folder / "keys.yaml"
    keys.write_text("version: 1\nkeys: []\n")
    config = region_config("us-1", US, [], policy_file=write_policy(folder, US))
    config = replace(config, admin_token=ADMIN, operators=tokens(folder), keys_file=keys)
    logger = make_logger(LoggingConfig(LogFormat.JSON), config.gateway_id, log or io.StringIO())
    async with serve_gateway(config, log=logger) as handle:
        yield handle


@asynccontextmanager
async def controller(folder: Path) -> AsyncIterator[ControllerHandle]:
    tokens(folder)
    (folder / "admin.token").write_text(ADMIN)
    listed = [{"name": f"who-{role}", "role": str(role), "token_file": f"{role}.token"} for role in Role]
    file = read_file(folder, admin_token_file="admin.token", operators={"tokens": listed})
    async with serve_controller(file) as handle:
        yield handle


async def statuses(
    session: aiohttp.ClientSession, url: str, method: str, path: str, body: object = None
) -> dict[str, int]:
    """Status that each token gets."""
    told = {}
    for token in ("", "wrong", *Role, ADMIN):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with session.request(method, url + path, json=body, headers=headers) as response:
            told[str(token)] = response.status
    return told


def from_role(least: Role, status: int = 200) -> dict[str, int]:
    roles = list(Role)
    allowed = {str(role): status if roles.index(role) >= roles.index(least) else 403 for role in roles}
    return {**STATUSES, **allowed, ADMIN: status}


@pytest.mark.parametrize(
    ("call", "least", "status"),
    [
        (("GET", "/metrics"), Role.LOOK, 200),
        (("HEAD", "/admin/state"), Role.LOOK, 200),
        (("GET", "/admin/explain/nobody"), Role.LOOK, 404),
        (("GET", "/admin/usage"), Role.LOOK, 200),
        (("GET", "/admin/keys"), Role.LOOK, 200),
        (("GET", "/admin/nothing-of-that-name"), Role.LOOK, 404),
        (LOCKDOWN, Role.DRAIN, 200),
        (("DELETE", "/admin/keys/nobody"), Role.CHANGE, 404),
        (("PATCH", "/admin/keys/nobody", {}), Role.CHANGE, 404),
        (("POST", "/admin/keys", {}), Role.CHANGE, 400),
    ],
    ids=lambda each: " ".join(each[:2]) if isinstance(each, tuple) else None,
)
async def test_a_gateway_lets_each_do_what_its_role_may(
    tmp_path: Path, session: aiohttp.ClientSession, call: tuple[Any, ...], least: Role, status: int
) -> None:
    async with gateway(tmp_path) as handle:
        assert await statuses(session, handle.admin_url, *call) == from_role(least, status)


async def test_a_gateway_s_log_says_who_ordered_and_no_token(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    log = io.StringIO()
    async with gateway(tmp_path, log) as handle:
        headers = {"authorization": "Bearer drain"}
        async with session.post(f"{handle.admin_url}/admin/lockdown", json=LOCKDOWN[2], headers=headers) as response:
            assert response.status == 200
        async with session.get(f"{handle.admin_url}/admin/whoami", headers=headers) as response:
            assert await response.json() == {"operator": "who-drain", "role": "drain"}
    (line,) = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "lockdown_activated"]
    assert (line["operator"], line["role"], line["reason"]) == ("who-drain", "drain", "drill")
    assert ADMIN not in log.getvalue()


FREEZE = {"order": "freeze", "reason": "drill"}
PARAMETERS = {"order": "parameters-clear"}


@pytest.mark.parametrize(
    ("order", "least"),
    [
        ({"order": FREEZE}, Role.DRAIN),
        ({"order": PARAMETERS}, Role.CHANGE),
        ({"order": PARAMETERS, "dry_run": True}, Role.LOOK),
    ],
)
async def test_a_controller_lets_each_order_what_its_role_may(
    tmp_path: Path, session: aiohttp.ClientSession, order: object, least: Role
) -> None:
    async with controller(tmp_path) as handle:
        assert await statuses(session, handle.admin_url, "POST", "/admin/orders", order) == from_role(least)
        assert await statuses(session, handle.admin_url, "GET", "/admin/export") == from_role(Role.LOOK)


async def test_a_controller_keeps_who_ordered_and_who_was_not_let(tmp_path: Path) -> None:
    """`nightside ctl` shows the records, with a token from a file and from the environment."""
    async with controller(tmp_path) as handle:

        async def run(*arguments: str, **environ: str) -> str:
            called = [*arguments, "--admin", handle.admin_url]
            return (await asyncio.to_thread(CliRunner(env=environ).invoke, ctl, called)).output

        file = str(tmp_path / "drain.token")
        assert "freeze" not in await run("freeze"), "without a token"
        await run("freeze", "--reason", "drill", "--token-file", file)
        refused = await run("parameters", "clear", **{TOKEN_VARIABLE: "drain"})
        assert "this needs the role `change`, and who-drain has `drain`" in refused
        told = await run("history", **{TOKEN_VARIABLE: "look"})
        assert "(who-drain, drain) from 127.0.0.1: freeze" in told
        assert "parameters-clear  refused: this needs the role `change`" in told
        assert handle.manager.core.frozen


async def test_every_route_says_what_it_needs(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one, controller(tmp_path) as other:
        for app in (one.admin_app, other.admin_app):
            assert app is not None
            assert list(undeclared_routes(app)) == []
