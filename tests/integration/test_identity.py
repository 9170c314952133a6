"""Clients and operators with tokens of an issuer, over real sockets: the identities they give, the effect of key
rotation and of the issuer's death, and that no token is disclosed.

The issuer is a small fake; for a real one see tests/issuers.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.oidc import ChoiceConfig, ClientIssuerConfig, OidcConfig, PlanConfig
from gateway.config.places import ProcessSection
from gateway.config.sections import AuditConfig, JournalConfig, StateConfig
from gateway.security.keys import mint
from gateway.security.tokens import Subjects
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig, LogLevel
from mesh.logs import make_logger
from mesh.operators_config import OperatorIssuerConfig, OperatorsConfig, Role
from tests.fakes.engine import FakeEngine, answer
from tests.fakes.issuer import FakeIssuer, ec_key, issuing
from tests.support.core import MODEL, US
from tests.support.gateways import CHAT, counted, free_replicas, region_config, until, write_policy

SECOND = 1_000_000_000
PLANS = {"free": PlanConfig(requests_per_minute=1), "gold": PlanConfig(concurrency=8)}
RULES = {"here": ProcessSection(regions=("us-east-1",)), "elsewhere": ProcessSection(jurisdictions=("EU",))}


def client_issuer(url: str, **more: Any) -> ClientIssuerConfig:
    config = ClientIssuerConfig(
        name="corp",
        issuer=url,
        audiences=("nightside",),
        tenant=ChoiceConfig(claim="org.id"),
        plan=ChoiceConfig(claim="plan", default="gold"),
        process=ChoiceConfig(claim="residency", default="here"),
    )
    return replace(config, **more)


class House:
    """A gateway that accepts keys and tokens, its log, and a client."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession, engine: FakeEngine, issuer: FakeIssuer) -> None:
        self.folder, self.session, self.engine, self.issuer = folder, session, engine, issuer
        self.log = io.StringIO()
        self.gateway: GatewayHandle
        self.key, kept = mint("a")
        entry = {"id": "a", "hash": str(kept), "tenant": "of-key"}
        (folder / "keys.yaml").write_text(yaml.safe_dump({"version": 1, "keys": [entry]}))
        engine.plays(answer())

    @asynccontextmanager
    async def open(self, *, issuer: dict[str, Any] | None = None, **changes: Any) -> AsyncIterator[GatewayHandle]:
        config = region_config("us-1", US, [self.engine.url], policy_file=write_policy(self.folder, US))
        oidc = OidcConfig((client_issuer(self.issuer.url, **(issuer or {})),), rules=RULES, plans=PLANS)
        config = replace(config, **{"keys_file": self.folder / "keys.yaml", "oidc": oidc, **changes})
        logger = make_logger(LoggingConfig(LogFormat.JSON, LogLevel.DEBUG), config.gateway_id, self.log)
        async with serve_gateway(config, log=logger) as self.gateway:
            await until(lambda: free_replicas(self.gateway) == 1)
            yield self.gateway

    async def known(self) -> None:
        """Wait until the issuer's keys have arrived."""
        await until(lambda: counted(self.gateway, "issuer_keys", use="clients", issuer="corp") > 0)

    def token(self, **changes: Any) -> str:
        return self.issuer.token(**{"org": {"id": "acme"}, **changes})

    async def ask(self, credential: str, **headers: str) -> tuple[int, dict[str, Any], str]:
        """Status, body and challenge."""
        told = {"authorization": f"Bearer {credential}", **headers}
        body = {**CHAT, "stream": False}
        async with self.session.post(
            f"{self.gateway.http_url}/v1/chat/completions", json=body, headers=told
        ) as response:
            return response.status, await response.json(), response.headers.get("www-authenticate", "")

    async def status(self, credential: str) -> tuple[int, str]:
        status, body, _ = await self.ask(credential)
        return status, "" if status == 200 else body["error"]["code"]

    async def shown(self, path: str) -> Any:
        async with self.session.get(self.gateway.admin_url + path) as response:
            return await response.json()


@pytest.fixture
async def house(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield House(tmp_path, session, engine, await stack.enter_async_context(issuing()))


class TestClients:
    async def test_a_token_stands_for_a_tenant_beside_keys(self, house: House) -> None:
        async with house.open():
            await house.known()
            assert await house.status(house.token()) == (200, "")
            assert await house.status(house.key) == (200, "")
            assert await house.status("nonsense") == (401, "invalid_api_key")
            assert await house.status(house.token(org={"id": "no tenant"})) == (403, "token_not_mapped")
            usage = (await house.shown("/admin/usage"))["rows"]
            alice = f"corp-{Subjects('', Clock(), 1, 1).pseudonym('corp', 'alice')}"
            assert {(row["key"], row["tenant"]) for row in usage} == {(alice, "acme"), ("a", "of-key")}
            assert house.engine.received[-1].headers.get("authorization") is None, "no credential reaches an engine"

    async def test_the_clients_that_people_use(self, house: House) -> None:
        async with house.open() as gateway:
            await house.known()
            async with openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key=house.token()) as client:
                assert [model.id async for model in client.models.list()] == [MODEL]

            async def current() -> str:
                return house.token(sub="bob")

            async with openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key=current) as client:
                said = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
                assert said.choices
            expired = house.token(exp=1)
            async with anthropic.AsyncAnthropic(base_url=gateway.http_url, api_key=expired, max_retries=0) as asking:
                with pytest.raises(anthropic.AuthenticationError, match="the access token has expired"):
                    await asking.messages.create(
                        model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "hi"}]
                    )

    async def test_whoever_holds_a_bad_one_is_told_why(self, house: House) -> None:
        async with house.open(issuer={"scopes": ("inference",)}):
            await house.known()
            good = house.token(scope="inference")
            for token, status, code, why in (
                (house.token(scope="inference", exp=1), 401, "invalid_token", "the access token has expired"),
                (house.token(scope="inference", aud="x"), 401, "invalid_token", "is meant for another audience: aud"),
                (good[:-4] + "AAAA", 401, "invalid_token", "the signature of the access token is not valid"),
                (
                    house.token(scope="inference", iss="https://x.example.net"),
                    401,
                    "invalid_token",
                    "is not trusted",
                ),
                (house.token(scope="other"), 403, "insufficient_scope", "lacks a required scope: inference"),
            ):
                answered = await house.ask(token)
                assert (answered[0], answered[1]["error"]["code"]) == (status, code)
                assert why in answered[1]["error"]["message"]
                assert why in answered[2]
            assert await house.status(good) == (200, "")

    async def test_claims_pick_limits_and_where_it_may_be_processed(self, house: House) -> None:
        async with house.open():
            await house.known()
            free = house.token(plan="free")
            assert [(await house.status(free))[0] for _ in range(2)] == [200, 429]
            assert (await house.status(house.token(plan="free", sub="bob")))[0] == 200, "each has his own"
            status, code = await house.status(house.token(residency="elsewhere"))
            assert (status, code) == (421, "residency_ingress")
            assert await house.status(house.token(residency="anywhere")) == (403, "token_not_mapped")

    async def test_no_token_names_another_tenant(self, house: House) -> None:
        async with house.open(trust_tenant_header=True):
            await house.known()
            status, body, _ = await house.ask(house.token(), **{"x-nightside-tenant": "other"})
            assert (status, body["error"]["code"]) == (403, "tenant_not_allowed")

    async def test_where_only_tokens_open_nothing_else_does(self, house: House) -> None:
        async with house.open(keys_file=None):
            await house.known()
            assert await house.status(house.token()) == (200, "")
            for other in ("", "nonsense", house.key):
                assert await house.status(other) == (401, "invalid_api_key")

    async def test_no_token_is_ever_told(self, house: House) -> None:
        records = {name: house.folder / name for name in ("journal", "audit", "state")}
        changes: dict[str, Any] = {
            "journal": JournalConfig(records["journal"]),
            "audit": AuditConfig(records["audit"]),
            "state": StateConfig(records["state"]),
        }
        good = house.token(sub="canary-subject", email="canary@example.net")
        bad = house.token(sub="canary-subject", exp=1)
        async with house.open(**changes) as gateway:
            await house.known()
            for token in (good, bad, good[:-3] + "AAA"):
                await house.ask(token, **{"x-request-id": "r-1"})
            pages = [
                json.dumps(await house.shown(path)) for path in ("/admin/state", "/admin/explain/r-1", "/admin/usage")
            ]
            async with house.session.get(f"{gateway.admin_url}/metrics") as response:
                pages.append(await response.text())
        written = [path.read_bytes().decode("latin-1") for path in house.folder.rglob("*") if path.is_file()]
        for told in (house.log.getvalue(), *pages, *written):
            for secret in (good, bad, *good.split(".")[1:], "canary"):
                assert secret not in told


class TestIssuers:
    async def test_one_that_is_dead_stops_nobody_whose_key_is_known(self, house: House) -> None:
        """Keys of the gateway's own and tokens signed by a known key stay valid, also across a restart."""
        state = StateConfig(house.folder / "state")
        async with house.open(state=state):
            await house.known()
            assert await house.status(house.token()) == (200, "")
        house.issuer.status = 503
        house.issuer.asked.clear()
        async with house.open(state=state):
            await until(lambda: bool(house.issuer.asked))
            assert await house.status(house.key) == (200, "")
            assert await house.status(house.token()) == (200, "")
            told = (await house.shown("/admin/state"))["issuers"]["clients"]["corp"]
            assert told["is_usable"]
            assert "status 503" in told["fault"]
        async with house.open():
            assert await house.status(house.key) == (200, "")
            assert await house.status(house.token()) == (503, "issuer_unavailable")
        assert "issuer_keys_fetch_failed" in house.log.getvalue()

    async def test_one_that_never_answers_keeps_no_key_waiting(self, house: House) -> None:
        house.issuer.gate = asyncio.Event()
        async with house.open(), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(house.status(house.token()))
            assert await house.status(house.key) == (200, "")
            assert not waiting.done()
            house.issuer.gate.set()
            assert await waiting == (200, "")

    async def test_one_that_nobody_vouches_for_is_no_matter_for_keys(self, house: House) -> None:
        async with house.open(issuer={"ca_file": house.folder / "nothing"}):
            assert await house.status(house.key) == (200, "")
            assert (await house.status(house.token()))[0] == 503

    async def test_a_new_key_opens_at_once_and_a_withdrawn_one_no_more(self, house: House) -> None:
        async with house.open(issuer={"refetch_interval_ns": 1}):
            await house.known()
            old = house.token()
            assert await house.status(old) == (200, "")
            house.issuer.keys = [ec_key("key-2")]
            assert await house.status(house.token()) == (200, "")
            assert await house.status(old) == (401, "invalid_token")

    async def test_strangers_cannot_have_it_asked_again_and_again(self, house: House) -> None:
        async with house.open(issuer={"refetch_interval_ns": 3600 * SECOND}):
            await house.known()
            house.issuer.asked.clear()
            strange = [house.token(key=ec_key(f"key-{number}")) for number in range(2, 22)]
            assert {await house.status(token) for token in strange} == {(401, "invalid_token")}
            assert house.issuer.asked == []
            counts = {"use": "clients", "issuer": "corp"}
            assert counted(house.gateway, "token_verifications_total", **counts, result="key") == 20


class TestOperators:
    async def test_a_role_comes_from_a_claim(self, house: House) -> None:
        issuer = OperatorIssuerConfig(
            name="staff",
            issuer=house.issuer.url,
            audiences=("admin",),
            claim="groups",
            roles={Role.LOOK: ("viewers",), Role.DRAIN: ("on-call",)},
        )
        async with house.open(operators=OperatorsConfig(issuers=(issuer,)), admin_token="s3cret") as gateway:
            await until(lambda: counted(gateway, "issuer_keys", use="operators", issuer="staff") > 0)

            async def lockdown(token: str) -> tuple[int, str]:
                told = {"authorization": f"Bearer {token}"}
                order = {"active": False}
                url = f"{gateway.admin_url}/admin/lockdown"
                async with house.session.post(url, json=order, headers=told) as response:
                    return response.status, (await response.json()).get("error", "")

            viewer = house.token(aud="admin", groups=["viewers", "x"])
            assert await lockdown(viewer) == (403, "this needs the role `drain`, and staff:alice has `look`")
            assert (await lockdown(house.token(aud="admin", groups=["on-call"])))[0] == 200
            assert (await lockdown("s3cret"))[0] == 200
            status, why = await lockdown(house.token(groups=["on-call"]))
            assert (status, why) == (401, "the access token is meant for another audience: aud"), (
                "a client is no operator"
            )
            assert await house.status(viewer) == (401, "invalid_token"), "and an operator is no client"
        lines = [json.loads(line) for line in house.log.getvalue().splitlines()]
        assert [line["operator"] for line in lines if "operator" in line] == ["staff:alice", "admin-token"]
