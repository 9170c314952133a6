"""Clients with keys, over real sockets: which are accepted, the limits of each key, and that no secret is disclosed."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import JournalConfig, LimitsConfig
from gateway.security.keys import mint
from mesh.config import LogFormat, LoggingConfig, LogLevel
from mesh.logs import make_logger
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_STREAM,
    ROLE,
    STOP,
    FakeEngine,
    answer,
    event,
    hang,
    stream,
    stream_until,
    token,
)
from tests.support.core import EU, MODEL, US, unresumed
from tests.support.gateways import CHAT, counted, free_replicas, region_config, until, write_policy
from tests.support.programs import nightside
from tests.support.wire import wire

PATH = "/v1/chat/completions"
LONG = [{"role": "user", "content": "w" * 2000}]


class House:
    """A gateway with a keys file, its log, and a client."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession) -> None:
        self.keys_file = folder / "keys.yaml"
        self.entries: dict[str, dict[str, object]] = {}
        self.session = session
        self.log = io.StringIO()
        self.gateway: GatewayHandle
        self.write_keys()

    def add(self, key_id: str, tenant: str = "acme", **more: object) -> str:
        key, kept = mint(key_id)
        self.entries[key_id] = {"id": key_id, "hash": str(kept), "tenant": tenant, **more}
        self.write_keys()
        return key

    def write_keys(self) -> None:
        self.keys_file.write_text(yaml.safe_dump({"version": 1, "keys": list(self.entries.values())}))

    @asynccontextmanager
    async def open(self, engine: FakeEngine, folder: Path, **changes: Any) -> AsyncIterator[GatewayHandle]:
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(folder, US))
        config = replace(config, keys_file=self.keys_file, **changes)
        logger = make_logger(LoggingConfig(LogFormat.JSON, LogLevel.DEBUG), config.gateway_id, self.log)
        async with serve_gateway(config, log=logger) as self.gateway:
            await until(lambda: free_replicas(self.gateway) == 1)
            yield self.gateway

    @asynccontextmanager
    async def ask(self, key: str | None, path: str = PATH, **changes: object) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        body = io.BytesIO(json.dumps({**CHAT, **changes}).encode())
        url = self.gateway.http_url + path
        async with self.session.post(url, data=body, headers=headers) as response:
            yield response

    async def status(self, key: str | None, path: str = PATH, **changes: object) -> tuple[int, str]:
        async with self.ask(key, path, **changes) as response:
            body = await response.read()
        return (200, "") if response.status == 200 else (response.status, json.loads(body)["error"]["code"])

    def request_lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == "request"]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with aiohttp.ClientSession() as session:
        yield House(tmp_path, session)


class TestGettingIn:
    async def test_a_key_opens_the_door_and_says_who_asks(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tenant="acme")
        async with house.open(engine, tmp_path):
            assert await house.status(key) == (200, "")
            assert house.request_lines()[0]["tenant"] == "acme"
        assert not {"authorization", "x-api-key"} & set(engine.received[0].headers)

    async def test_nothing_else_does_and_why_is_not_told(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a")
        off = house.add("off", disabled=True)
        late = house.add("late", expires="2020-01-01")
        answers = []
        async with house.open(engine, tmp_path):
            for wrong in (None, "", "sk-1", key[:-1] + "x", key.replace("ns-a-", "ns-b-"), off, late):
                async with house.ask(wrong) as response:
                    answers.append((response.status, response.headers["www-authenticate"], await response.read()))
        assert len(set(answers)) == 1
        assert answers[0][:2] == (401, "Bearer")
        assert json.loads(answers[0][2])["error"]["code"] == "invalid_api_key"
        assert engine.received == []

    async def test_every_client_route_asks_and_health_does_not(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        async with house.open(engine, tmp_path) as gateway:
            for method, path in (("GET", "/v1/models"), ("GET", "/nowhere"), ("POST", "/v1/embeddings"), ("PUT", PATH)):
                async with house.session.request(method, gateway.http_url + path) as response:
                    assert response.status == 401, path
            for path in ("/health", "/ready"):
                async with house.session.get(gateway.http_url + path) as response:
                    assert response.status == 200, path

    async def test_the_clients_that_people_use(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a")
        async with house.open(engine, tmp_path) as gateway:
            async with openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key=key, max_retries=0) as right:
                assert [model.id async for model in await right.models.list()] == [MODEL]
            async with openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key="no", max_retries=0) as wrong:
                with pytest.raises(openai.AuthenticationError):
                    await wrong.chat.completions.create(model=MODEL, messages=[])

    async def test_in_anthropics_dialect(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a", models=["llama"])
        headers = {"anthropic-version": "2023-06-01"}
        body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        async with house.open(engine, tmp_path) as gateway:
            url = f"{gateway.http_url}/v1/messages"
            async with house.session.post(url, json=body, headers={**headers, "x-api-key": "no"}) as response:
                assert response.status == 401
                refused = await response.json()
                assert (refused["type"], refused["error"]["type"]) == ("error", "authentication_error")
            engine.plays(answer())
            async with house.session.post(url, json=body, headers={**headers, "x-api-key": key}) as response:
                assert response.status == 200

    async def test_a_key_does_not_name_another_tenant(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        """A key could otherwise claim any tenant, and choose the residency rule that applies to it."""
        key = house.add("a", tenant="acme")
        async with house.open(engine, tmp_path, trust_tenant_header=True) as gateway:
            headers = {"authorization": f"Bearer {key}", "x-nightside-tenant": "beta"}
            url = gateway.http_url + PATH
            async with house.session.post(url, data=json.dumps(CHAT).encode(), headers=headers) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (403, "tenant_not_allowed")
            assert await house.status(key) == (200, "")
        assert len(engine.received) == 1

    async def test_a_header_names_the_tenant_only_where_it_is_trusted(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tenant="acme", may_name_tenant=True)
        for trusted, expected in ((False, "acme"), (True, "beta")):
            async with house.open(engine, tmp_path, trust_tenant_header=trusted) as gateway:
                headers = {"authorization": f"Bearer {key}", "x-nightside-tenant": "beta"}
                url = gateway.http_url + PATH
                async with house.session.post(url, data=json.dumps(CHAT).encode(), headers=headers) as response:
                    assert response.status == 200
                    await response.read()
            assert house.request_lines()[-1]["tenant"] == expected

    async def test_a_changed_file_holds_from_then_on(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        old = house.add("old")
        async with house.open(engine, tmp_path) as gateway:
            del house.entries["old"]
            new = house.add("new")
            assert await gateway.reloader.reload() == []
            assert await house.status(old) == (401, "invalid_api_key")
            assert await house.status(new) == (200, "")
            house.keys_file.write_text("keys: 5\n")
            assert await gateway.reloader.reload() == ["keys"]
            assert await house.status(new) == (200, "")
        assert "reload_rejected" in house.log.getvalue()


class TestWhatAKeyMayUse:
    async def test_models(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        some, other = house.add("some", models=[MODEL]), house.add("other", models=["else"])
        async with house.open(engine, tmp_path) as gateway:
            assert await house.status(some) == (200, "")
            assert await house.status(other) == (404, "model_not_found")
            for key, names in ((some, [MODEL]), (other, [])):
                headers = {"authorization": f"Bearer {key}"}
                async with house.session.get(f"{gateway.http_url}/v1/models", headers=headers) as response:
                    assert [each["id"] for each in (await response.json())["data"]] == names
                async with house.session.get(f"{gateway.http_url}/v1/models/{MODEL}", headers=headers) as response:
                    assert response.status == (200 if names else 404)

    async def test_places(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        here = house.add("here", process={"regions": [US.region]})
        elsewhere = house.add("elsewhere", process={"jurisdictions": [EU.jurisdiction]})
        async with house.open(engine, tmp_path):
            assert await house.status(here) == (200, "")
            assert await house.status(elsewhere) == (421, "residency_ingress")

    async def test_requests_at_once(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key, other = house.add("a", concurrency=1), house.add("b")
        go_on = asyncio.Event()
        engine.plays(stream_until(go_on, (ROLE, token("x")), (STOP, DONE)), stream(*GOOD_STREAM))
        async with house.open(engine, tmp_path):
            async with house.ask(key) as running:
                await running.content.readany()
                async with house.ask(key) as refused:
                    assert (refused.status, float(refused.headers["retry-after"]) > 0) == (429, True)
                    assert (await refused.json())["error"]["code"] == "concurrency_exceeded"
                assert await house.status(other) == (200, "")
                go_on.set()
                await running.read()
            assert await house.status(key) == (200, "")

    async def test_a_client_that_leaves_gives_its_place_back(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", concurrency=1)
        engine.plays(stream_until(asyncio.Event(), (ROLE, token("x"))), stream(*GOOD_STREAM))
        async with house.open(engine, tmp_path) as gateway:
            async with house.ask(key) as running:
                await running.content.readany()
                running.close()
            await engine.aborted.reaches(1)
            await until(lambda: gateway.driver.open_requests == 0)
            while (await house.status(key))[0] == 429:
                pass
            assert await house.status(key) == (200, "")

    async def test_requests_per_minute(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a", requests_per_minute=2)
        async with house.open(engine, tmp_path):
            async with house.ask(key) as first:
                await first.read()
                assert first.headers["x-ratelimit-limit-requests"] == "2"
                assert first.headers["x-ratelimit-remaining-requests"] == "1"
                assert first.headers["x-ratelimit-reset-requests"].endswith("s")
            assert await house.status(key) == (200, "")
            async with house.ask(key) as refused:
                assert refused.status == 429
                assert (await refused.json())["error"] == {
                    "message": "The limit of requests per minute of this key is reached.",
                    "type": "rate_limit_error",
                    "param": None,
                    "code": "request_rate_exceeded",
                }
                wait_ms = int(refused.headers["retry-after-ms"])
                assert 0 < wait_ms <= 30_000
                assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
                assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(engine.received) == 2

    async def test_tokens_per_minute_are_set_aside_and_then_counted(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=2000)
        loop, gate = asyncio.get_running_loop(), asyncio.Event()
        engine.plays(stream_until(gate, GOOD_STREAM[:2], GOOD_STREAM[2:]), stream(*GOOD_STREAM))
        async with house.open(engine, tmp_path):
            started_s = loop.time()
            async with house.ask(key, max_tokens=1900) as running:
                assert int(running.headers["x-ratelimit-remaining-tokens"]) < 1000, "some have come back since"
                async with house.ask(key, max_tokens=1900) as refused:
                    assert refused.status == 429
                    assert (await refused.json())["error"]["code"] == "token_rate_exceeded"
                    assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
                gate.set()
                await running.read()
            async with house.ask(key, max_tokens=1900) as after:
                left = int(after.headers["x-ratelimit-remaining-tokens"])
                prompt = -(-len(json.dumps(CHAT["messages"])) // 4)
                counted = 2000 - 22 - 6 - 1900 - prompt
                refilled = (loop.time() - started_s) * 2000 / 60
                assert counted - 1 <= left <= counted + refilled + 1, "28 tokens, as the engine counted them"

    async def test_what_was_used_beyond_what_was_set_aside_is_a_debt(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=20)
        async with house.open(engine, tmp_path):
            assert await house.status(key, max_tokens=1) == (200, "")
            assert await house.status(key, max_tokens=1) == (429, "token_rate_exceeded")

    @pytest.mark.parametrize("count", [10**30, 2**63, -(10**9), 1e300, "many"])
    async def test_what_an_engine_cannot_have_counted_locks_no_key(
        self, house: House, engine: FakeEngine, tmp_path: Path, count: object
    ) -> None:
        key = house.add("a", tokens_per_minute=20_000)
        usage = {"prompt_tokens": count, "completion_tokens": count}
        engine.plays(stream(*GOOD_STREAM[:3], event({"choices": [], "usage": usage}), DONE))
        async with house.open(engine, tmp_path):
            for _ in range(3):
                assert await house.status(key, max_tokens=10) == (200, "")

    async def test_nor_does_what_it_can_have_counted_for_more_than_an_hour(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=10)
        usage = {"prompt_tokens": 16_000_000, "completion_tokens": 16_000_000}
        engine.plays(stream(*GOOD_STREAM[:3], event({"choices": [], "usage": usage}), DONE))
        async with house.open(engine, tmp_path):
            assert await house.status(key, max_tokens=1) == (200, "")
            async with house.ask(key, max_tokens=1) as refused:
                assert refused.status == 429
                assert 0 < int(refused.headers["retry-after-ms"]) <= 61 * 60_000

    async def test_without_a_limit_of_its_own_a_request_sets_the_configured_tokens_aside(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=2000)
        async with house.open(engine, tmp_path, limits=LimitsConfig(output_tokens_reserved=700)):
            async with house.ask(key) as response:
                assert 1250 < int(response.headers["x-ratelimit-remaining-tokens"]) < 1450

    async def test_what_nobody_got_costs_nothing(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a", tokens_per_minute=2000)
        engine.plays(answer(400, b'{"error":{"message":"no"}}'), answer(body=GOOD_ANSWER))
        async with house.open(engine, tmp_path):
            async with house.ask(key, max_tokens=1900) as refused:
                assert refused.status == 400
            async with house.ask(key, max_tokens=100, stream=False) as response:
                assert int(response.headers["x-ratelimit-remaining-tokens"]) > 1800

    async def test_a_key_without_limits_is_told_of_none(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a")
        async with house.open(engine, tmp_path), house.ask(key) as response:
            assert [name for name in response.headers if name.lower().startswith("x-ratelimit")] == []


class TestKeepingApart:
    async def test_tenants_and_cache_salts_share_no_knowledge_of_prompts(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        acme, acme_too, beta = house.add("a", "acme"), house.add("a2", "acme"), house.add("b", "beta")
        async with house.open(engine, tmp_path):
            for key, more in ((acme, {}), (acme_too, {}), (beta, {}), (acme, {"cache_salt": "s"}), (beta, {})):
                assert await house.status(key, messages=LONG, **more) == (200, "")
        assert [line["matched_share"] for line in house.request_lines()] == [0, 1, 0, 0, 1]

    async def test_no_secret_and_no_prompt_is_ever_told(
        self, house: House, engine: FakeEngine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        journal = tmp_path / "journal"
        key = house.add("a", requests_per_minute=8)
        engine.plays(
            stream(*GOOD_STREAM),
            answer(500, b"w" * 50),
            answer(400, b'{"error":{"message":"wwwwww"}}'),
            stream(*GOOD_STREAM),
        )
        async with house.open(engine, tmp_path, journal=JournalConfig(journal)) as gateway:
            for shown in (key, key, key, key, "ns-a-" + "5ec2e7" * 10 + "5ec2", None):
                await house.status(shown, messages=LONG)
            url = gateway.http_url + PATH
            for headers, body in (
                ({"authorization": f"Bearer {key}"}, b'{"model": "llama", "messages": "wwww'),
                ({"authorization": f"Bearer {key}", "cookie": "5ec2e7=" + "w" * 20_000}, b"{}"),
                ({"authorization": f"Basic {key}"}, b"{}"),
                ({"x-api-key": key, "x-nightside-tenant": "w w"}, b'{"model": "else", "messages": "wwww"}'),
            ):
                async with house.session.post(url, data=body, headers=headers) as response:
                    assert response.status >= 400
            reader, writer = await asyncio.open_connection(gateway.http_address.host, gateway.http_address.port)
            writer.write(f"POST {PATH} HTTP/1.1\r\nauthorization : Bearer {key}\r\nbroken\r\n\r\n".encode())
            assert b" 400 " in await reader.readline()
            writer.close()
            async with house.session.get(f"{gateway.admin_url}/admin/state") as response:
                state = await response.text()
            async with house.session.get(f"{gateway.admin_url}/metrics") as response:
                state += await response.text()
        told = state + house.log.getvalue() + "".join(capfd.readouterr())
        told += "".join(path.read_text() for path in journal.iterdir())
        assert house.request_lines(), "there is something to look at"
        secret = key.rpartition("-")[2]
        digest = str(house.entries["a"]["hash"]).rpartition(":")[2]
        for hidden in (secret, "5ec2e7", digest, "Bearer", "authorization", "wwww"):
            assert hidden not in told, hidden


class TestOperators:
    async def test_with_a_token_nothing_but_health_is_shown_without_it(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a")
        async with house.open(engine, tmp_path, admin_token="t0ken") as gateway:
            for shown, expected in ((None, 401), ("t0ke", 401), ("t0kenn", 401), (key, 401), ("t0ken", 200)):
                headers = {} if shown is None else {"authorization": f"Bearer {shown}"}
                for path in ("/metrics", "/admin/state", "/admin/overview"):
                    async with house.session.get(gateway.admin_url + path, headers=headers) as response:
                        assert (response.status, path) == (expected, path)
                        assert (await response.read() == b"") is False
            async with house.session.post(f"{gateway.admin_url}/admin/lockdown", json={"active": True}) as response:
                assert response.status == 401
            async with house.session.get(f"{gateway.admin_url}/admin/events") as response:
                assert response.status == 401
            for path in ("/health", "/ready", "/", "/page/main.js"):
                async with house.session.get(gateway.admin_url + path) as response:
                    assert response.status == 200


class TestBodies:
    async def test_one_key_leaves_room_for_another_and_one_tenant_for_another(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        """Each prompt counts as held for as long as its answer takes."""
        gate = asyncio.Event()
        engine.plays(stream_until(gate, (ROLE, token("x")), (STOP, DONE)))
        greedy, second, other = house.add("greedy"), house.add("second"), house.add("other", tenant="else")
        limits = LimitsConfig(body_max_bytes=20_000, bodies_held_max_bytes=100_000)
        async with house.open(engine, tmp_path, limits=limits, core=unresumed()), AsyncExitStack() as stack:

            async def hold(key: str) -> int:
                response = await stack.enter_async_context(house.ask(key, pad="x" * 9_000))
                return response.status

            assert [await hold(greedy) for _ in range(5)] == 5 * [200]
            assert await house.status(greedy, pad="x" * 9_000) == (429, "bodies_share_exceeded")
            assert [await hold(second) for _ in range(2)] == 2 * [200]
            assert await house.status(second, pad="x" * 9_000) == (429, "bodies_share_exceeded")
            assert await hold(other) == 200
            gate.set()

    @pytest.mark.parametrize(
        ("framing", "body"),
        [("content-length: 4", "zzzz"), ("transfer-encoding: chunked", "4\r\nzzzz\r\n0\r\n\r\n")],
    )
    async def test_what_a_stranger_s_body_is_not_is_nothing_to_log(
        self, house: House, engine: FakeEngine, tmp_path: Path, framing: str, body: str
    ) -> None:
        key = house.add("a")
        async with house.open(engine, tmp_path) as gateway:
            async with wire(gateway) as client:
                client.send(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\n{framing}\r\n\r\n")
                assert await client.refusal() == (401, "invalid_api_key")
                client.send(body)
                client.post("content-encoding: gzip", f"authorization: Bearer {key}")
                assert await client.refusal() == (400, "invalid_encoding")
        assert "exception" not in house.log.getvalue()
        assert "error" not in {json.loads(line)["level"] for line in house.log.getvalue().splitlines()}

    async def test_a_stranger_is_not_told_to_go_on(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        async with house.open(engine, tmp_path) as gateway, wire(gateway) as client:
            client.send(f"POST {PATH} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n")
            assert await client.refusal() == (401, "invalid_api_key")


class TestWhatIsCounted:
    async def test_a_prompt_that_an_engine_has_is_paid_for_though_nobody_waits_for_the_answer(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=1000)
        engine.plays(hang)
        async with house.open(engine, tmp_path) as gateway:
            async with asyncio.TaskGroup() as tasks:
                leaving = tasks.create_task(house.status(key, messages=LONG, max_tokens=1))
                await engine.arrived.reaches(1)
                leaving.cancel()
            await until(lambda: gateway.driver.open_requests == 0)
            assert await house.status(key, messages=LONG, max_tokens=1) == (429, "token_rate_exceeded")
            guess = counted(gateway, "prompt_tokens_total", model=MODEL, ran="local", counted="bytes")
            assert guess == counted(gateway, "tenant_tokens_total", tenant="acme", kind="prompt") > 500

    async def test_a_prompt_that_still_waits_for_an_engine_is_not(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=1000)
        async with house.open(engine, tmp_path) as gateway:
            engine.waiting = 1
            await until(lambda: free_replicas(gateway) == 0)
            async with asyncio.TaskGroup() as tasks:
                leaving = tasks.create_task(house.status(key, messages=LONG, max_tokens=1))
                await until(lambda: gateway.driver.open_requests == 1)
                leaving.cancel()
            await until(lambda: gateway.driver.open_requests == 0)
            engine.waiting = 0
            await until(lambda: free_replicas(gateway) == 1)
            assert await house.status(key, messages=LONG, max_tokens=1) == (200, "")

    async def test_a_stream_without_usage_counts_by_its_events_for_key_and_metrics_alike(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=6000)
        engine.plays(stream(ROLE, *[token("x")] * 40, STOP, DONE))
        async with house.open(engine, tmp_path) as gateway:
            assert await house.status(key) == (200, "")
            await until(lambda: gateway.driver.open_requests == 0)
            where = {"model": MODEL, "ran": "local"}
            assert counted(gateway, "output_tokens_total", **where, counted="events") == 40
            assert counted(gateway, "output_token_seconds_count", **where, counted="events") == 1
            assert counted(gateway, "tenant_tokens_total", tenant="acme", kind="output") == 40
            assert house.request_lines()[0]["content_events"] == 40

    async def test_a_stored_answer_that_is_looked_at_again_is_paid_for_once(
        self, house: House, engine: FakeEngine, tmp_path: Path
    ) -> None:
        key = house.add("a", tokens_per_minute=2000)
        usage = {"input_tokens": 200, "output_tokens": 700}
        kept = {"id": "resp_1", "object": "response", "status": "completed", "error": None, "usage": usage}
        engine.plays(answer(body=json.dumps(kept).encode()))
        async with house.open(engine, tmp_path) as gateway:
            headers, url = {"authorization": f"Bearer {key}"}, f"{gateway.http_url}/v1/responses"
            body = {"model": MODEL, "input": "hi", "store": True, "max_output_tokens": 10}
            async with house.session.post(url, json=body, headers=headers) as response:
                assert response.status == 200
            for _ in range(3):
                async with house.session.get(f"{url}/resp_1", headers=headers) as response:
                    assert (response.status, (await response.json())["usage"]) == (200, usage)
                    assert int(response.headers["x-ratelimit-remaining-tokens"]) >= 1100
            assert counted(gateway, "tenant_tokens_total", tenant="acme", kind="output") == 700
            assert counted(gateway, "output_tokens_total", model=MODEL, ran="local", counted="usage") == 700
            assert 'output_tokens_total{counted="usage",model="other"' not in gateway.metrics.render().decode()


class TestWhatIsTurnedAway:
    async def test_it_is_counted_logged_and_explained(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a", requests_per_minute=1, models=["llama"])
        async with house.open(engine, tmp_path) as gateway:
            assert await house.status(key) == (200, "")
            for _ in range(3):
                assert await house.status("wrong") == (401, "invalid_api_key")
            headers = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
            async with house.session.post(gateway.http_url + PATH, data=b"{}", headers=headers) as response:
                assert (response.status, response.headers["x-request-id"]) == (429, "mine")
            assert counted(gateway, "refusals_total", reason="invalid_api_key", tenant="") == 3
            assert counted(gateway, "refusals_total", reason="request_rate_exceeded", tenant="acme") == 1
            async with house.session.get(f"{gateway.admin_url}/admin/explain/mine") as response:
                here = (await response.json())["here"]
            assert (here["outcome"], here["detail"]) == ("refused", "429 request_rate_exceeded")
            status, words, _ = await nightside("explain", "mine", "--admin", gateway.admin_url)
            assert status == 0
            assert "It was turned away as request_rate_exceeded" in " ".join(words.split())
        lines = [json.loads(line) for line in house.log.getvalue().splitlines()]
        told = [line for line in lines if line["event"] == "refused"]
        assert [line["reason"] for line in told] == ["invalid_api_key", "request_rate_exceeded"], "one line a second"
        assert (told[1]["tenant"], told[1]["key"], told[1]["request_id"]) == ("acme", "a", "mine")

    async def test_whatever_the_reason(self, house: House, engine: FakeEngine, tmp_path: Path) -> None:
        key = house.add("a", models=["llama"])
        limits = LimitsConfig(body_max_bytes=1000)
        async with house.open(engine, tmp_path, limits=limits) as gateway:
            assert await house.status(key, model="else") == (404, "model_not_found")
            assert await house.status(key, messages=LONG) == (413, "body_too_large")
            assert await house.status(key, "/nowhere") == (404, "not_found")
            assert await house.status(key, model=5) == (400, "invalid_field")
            reader, writer = await asyncio.open_connection(gateway.http_address.host, gateway.http_address.port)
            writer.write(b"NONSENSE\r\n\r\n")
            assert b"400" in await reader.readline()
            writer.close()
            reasons = ("model_not_found", "body_too_large", "not_found", "invalid_field")
            assert [counted(gateway, "refusals_total", reason=each, tenant="acme") for each in reasons] == [1] * 4
            assert counted(gateway, "refusals_total", reason="invalid_request", tenant="") == 1
