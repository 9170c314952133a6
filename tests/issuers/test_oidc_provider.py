"""A real OpenID provider, certified and unmodified (npm's `oidc-provider`), as the issuer of clients' and operators'
tokens: its discovery document, its signatures, key rotation, and the effect of its death.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result
from joserfc.jwk import ECKey, KeySet
from msgspec.structs import replace

from controller.app import serve_controller
from controller.ctl.commands import ctl
from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.oidc import ChoiceConfig, ClientIssuerConfig, OidcConfig, PlanConfig
from gateway.config.sections import StateConfig
from mesh.admin_client import TOKEN_VARIABLE
from tests.fakes.engine import FakeEngine, answer
from tests.fakes.issuer import RSA_KEY, SigningKey
from tests.issuers.conftest import PROVIDER
from tests.support.controllers import read_file
from tests.support.core import US
from tests.support.gateways import CHAT, counted, free_replicas, region_config, until, write_policy
from tests.support.programs import killed_at_the_end

AUDIENCE, ADMIN = "https://llm.example.net", "https://admin.example.net"
CLIENTS: dict[str, Any] = {
    "team-a": {"org": {"id": "acme"}, "plan": "small"},
    "team-b": {"org": {"id": "other"}},
    "on-call": {"groups": ["everybody", "on-call"]},
}


class Provider:
    """OpenID provider on one port, with keys that the test chooses; it can end and return with other keys."""

    def __init__(self, node: str, folder: Path, port: int, session: aiohttp.ClientSession) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._node, self._folder, self._port, self._session = node, folder, port, session

    @asynccontextmanager
    async def running(self, *keys: SigningKey) -> AsyncIterator[None]:
        keys_file, claims_file = self._folder / "keys.json", self._folder / "claims.json"
        algorithm = "RS256" if keys[0] is RSA_KEY else "ES256"
        keys_file.write_text(json.dumps(KeySet(list(keys)).as_dict(private=True)))
        claims_file.write_text(json.dumps({**CLIENTS, "__algorithm": algorithm}))
        process = await asyncio.create_subprocess_exec(
            *(self._node, "provider.mjs", str(self._port), str(keys_file), str(claims_file)),
            cwd=PROVIDER,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        async with killed_at_the_end(process):
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            yield

    async def token(self, client: str, scope: str = "inference", audience: str = AUDIENCE) -> str:
        """Token as a client gets one (OAuth 2.0, client credentials, with the resource that it is for: RFC 8707)."""
        asked = {
            "grant_type": "client_credentials",
            "client_id": client,
            "client_secret": f"secret of {client}",
            "resource": audience,
            "scope": scope,
        }
        async with self._session.post(f"{self.url}/token", data=asked) as response:
            told = await response.json()
            assert response.status == 200, told
            return str(told["access_token"])

    def clients(self) -> ClientIssuerConfig:
        return ClientIssuerConfig(
            name="corp",
            issuer=self.url,
            audiences=(AUDIENCE,),
            scopes=("inference",),
            access_tokens_only=True,
            refetch_interval_ns=1,
            tenant=ChoiceConfig(claim="org.id"),
            plan=ChoiceConfig(claim="plan", default="large"),
        )


class House:
    def __init__(self, provider: Provider, session: aiohttp.ClientSession, engine: FakeEngine, folder: Path) -> None:
        self.provider, self._session, self._engine, self._folder = provider, session, engine, folder
        engine.plays(answer())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[GatewayHandle]:
        plans = {"small": PlanConfig(requests_per_minute=2), "large": PlanConfig()}
        config = region_config("us-1", US, [self._engine.url], policy_file=write_policy(self._folder, US))
        config = replace(
            config,
            oidc=OidcConfig((self.provider.clients(),), plans=plans),
            state=StateConfig(self._folder / "state"),
        )
        async with serve_gateway(config) as self._gateway:
            await until(lambda: free_replicas(self._gateway) == 1)
            yield self._gateway

    async def ask(self, token: str) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"}
        url = f"{self._gateway.http_url}/v1/chat/completions"
        async with self._session.post(url, json={**CHAT, "stream": False}, headers=headers) as response:
            body = await response.json()
            return response.status, "" if response.status == 200 else body["error"]["code"]


@pytest.fixture
async def house(tmp_path: Path, node: str, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine().serving())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield House(Provider(node, tmp_path, unused_tcp_port_factory(), session), session, engine, tmp_path)


@pytest.mark.parametrize(
    "key", [RSA_KEY, ECKey.generate_key("P-256", {"kid": "ec-1", "use": "sig"})], ids=["rsa", "ec"]
)
async def test_its_access_tokens_open_the_door_for_whom_they_are_meant(house: House, key: SigningKey) -> None:
    async with house.provider.running(key), house.open() as gateway:
        good = await house.provider.token("team-a")
        assert [await house.ask(good) for _ in range(3)] == [(200, ""), (200, ""), (429, "request_rate_exceeded")]
        assert await house.ask(await house.provider.token("team-b")) == (200, "")
        assert await house.ask(await house.provider.token("team-a", audience=ADMIN)) == (401, "invalid_token")
        assert await house.ask(await house.provider.token("team-a", scope="admin")) == (403, "insufficient_scope")
        assert await house.ask(await house.provider.token("on-call")) == (403, "token_not_mapped")
        assert await house.ask(good[:-6] + "AAAAAA") == (401, "invalid_token")
        counts = {"use": "clients", "issuer": "corp"}
        assert counted(gateway, "token_verifications_total", **counts, result="remembered") == 2


async def test_its_keys_turn_over_and_its_death_stops_nobody_who_is_known(house: House) -> None:
    first, second = (ECKey.generate_key("P-256", {"kid": name, "use": "sig"}) for name in ("first", "second"))
    async with house.open():
        assert (await house.ask("ey.ey.ey"))[0] == 401, "the gateway is there before its issuer"
        async with house.provider.running(first):
            old = await house.provider.token("team-b")
            assert await house.ask(old) == (200, ""), "it was asked as soon as somebody showed its token"
        assert await house.ask(old) == (200, ""), "it is gone"
        async with house.provider.running(second, first):
            new = await house.provider.token("team-b")
            assert await house.ask(new) == (200, "")
            assert await house.ask(old) == (200, ""), "both are published"
        async with house.provider.running(second):
            unheard_of = await house.provider.token("team-b")
            assert await house.ask(unheard_of) == (200, "")
    async with house.open():
        assert await house.ask(new) == (200, ""), "after a restart, without the issuer"


async def test_an_operator_of_a_controller(house: House, tmp_path: Path) -> None:
    """`nightside ctl`, with a token in the environment as a command would print it."""
    issuer = {
        "name": "staff",
        "issuer": house.provider.url,
        "audiences": [ADMIN],
        "claim": "groups",
        "roles": {"drain": ["on-call"]},
    }
    async with house.provider.running(RSA_KEY):
        file = read_file(tmp_path / "controller", operators={"issuers": [issuer]})
        async with serve_controller(file) as controller:
            runner = CliRunner(env={TOKEN_VARIABLE: await house.provider.token("on-call", "admin", ADMIN)})

            async def run(*arguments: str) -> Result:
                return await asyncio.to_thread(runner.invoke, ctl, [*arguments, "--admin", controller.admin_url])

            for order, code in ((("freeze",), 0), (("parameters", "clear"), 1), (("unfreeze",), 0)):
                assert (await run(*order)).exit_code == code
            assert (await run("history")).output.count("(staff:on-call, drain)") == 3
            runner = CliRunner(env={TOKEN_VARIABLE: await house.provider.token("on-call")})
            assert "meant for another audience" in (await run("history")).output
