"""Clients' usage, over real sockets: budgets that survive a restart, and keys changed by operators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, StateConfig, UsageConfig
from gateway.security.keys_editing import add_key, set_tenant_budget
from mesh.clock import Clock
from tests.fakes.engine import FakeEngine
from tests.support.core import MODEL, US
from tests.support.gateways import free_replicas, region_config, until, write_policy
from tests.support.programs import nightside
from tests.support.served import HELLO

TOKEN = {"authorization": "Bearer t0ken"}


class House:
    def __init__(self, folder: Path, engine: FakeEngine, session: aiohttp.ClientSession) -> None:
        self.keys = folder / "keys.yaml"
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(folder, US))
        self.config = replace(config, keys_file=self.keys, admin_token="t0ken", state=StateConfig(folder / "state"))
        self.session = session
        self.gateway: GatewayHandle

    def add(self, key_id: str, **options: Any) -> str:
        options = {"tenant": "acme", **options}
        return add_key(self.keys, key_id, options, Clock().wall_ns(), may_be_missing=True).key

    @asynccontextmanager
    async def open(self, config: GatewayConfig | None = None) -> AsyncIterator[GatewayHandle]:
        async with serve_gateway(config or self.config) as self.gateway:
            await until(lambda: free_replicas(self.gateway) == 1)
            yield self.gateway

    async def chat(self, key: str, *, retries: int = 2) -> str:
        """Outcome of the request."""
        async with openai.AsyncOpenAI(
            base_url=f"{self.gateway.http_url}/v1", api_key=key, max_retries=retries
        ) as client:
            try:
                await client.chat.completions.create(model=MODEL, messages=HELLO)
            except openai.APIStatusError as error:
                return str(error.code)
        return "answered"

    async def admin(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        url = f"{self.gateway.admin_url}{path}"
        async with self.session.request(method, url, json=body, headers={**TOKEN, **headers}) as response:
            return response.status, await response.json() if response.status != 204 else None


@pytest.fixture
async def house(tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession) -> House:
    return House(tmp_path, engine, session)


class TestBudgets:
    @pytest.mark.parametrize("period", ["tokens_per_day", "tokens_per_month"])
    async def test_a_budget_is_used_up_and_stays_so_over_a_restart(self, house: House, period: str) -> None:
        key = house.add("a", **{period: 1})
        other = house.add("b")
        async with house.open():
            assert [await house.chat(key), await house.chat(key)] == ["answered", "budget_exceeded"]
        async with house.open():
            assert [await house.chat(key), await house.chat(other)] == ["budget_exceeded", "answered"]

    async def test_a_client_is_told_whose_it_is_and_until_when(self, house: House) -> None:
        key = house.add("a")
        set_tenant_budget(house.keys, "acme", {"tokens_per_month": 1})
        async with house.open() as gateway:
            await house.chat(key)
            asked = house.session.post(
                f"{gateway.http_url}/v1/chat/completions",
                json={"model": MODEL, "messages": HELLO},
                headers={"authorization": f"Bearer {key}"},
            )
            async with asked as response:
                error = (await response.json())["error"]
                assert (response.status, error["type"]) == (429, "rate_limit_error")
                assert error["message"] == "The token budget is used up. (of this tenant, 1 tokens a month)"
                assert response.headers["x-should-retry"] == "false"
                assert 0 < int(response.headers["retry-after"]) <= 31 * 86_400

    async def test_what_was_used_and_cannot_be_read_closes_budgets_until_it_can_be(self, house: House) -> None:
        key, other = house.add("a", tokens_per_day=1), house.add("b")
        async with house.open():
            assert await house.chat(key) == "answered"
        folder = house.keys.parent / "state"
        path = folder / "us-1.usage.sqlite"
        kept = path.rename(folder / "kept")
        (folder / "a folder").mkdir()
        path.symlink_to("a folder")
        often = replace(house.config, usage=UsageConfig(flush_interval_ns=10_000_000))
        async with house.open(often) as gateway:
            assert [await house.chat(key, retries=0), await house.chat(other)] == ["usage_unknown", "answered"]
            status, ready = await house.admin("GET", "/ready")
            assert (status, ready["usage"][:31]) == (200, "keys with budgets are refused: ")
            assert "nightside_usage_failing 1.0" in gateway.metrics.render().decode()
            kept.replace(path)  # replaced in one step: a gateway that finds no file begins an empty one
            await until(lambda: "nightside_usage_failing 0.0" in gateway.metrics.render().decode())
            assert [await house.chat(key), await house.chat(other)] == ["budget_exceeded", "answered"]
            assert "usage" not in (await house.admin("GET", "/ready"))[1]

    async def test_without_a_state_folder_there_is_no_budget_to_start_with(self, house: House) -> None:
        house.add("a", tokens_per_day=1)
        with pytest.raises(Exception, match=r"keys\[0\]: a budget has to survive restarts"):
            async with house.open(replace(house.config, state=StateConfig())):
                pass


class TestUsage:
    async def test_it_is_told_by_key_and_tenant_and_day(self, house: House) -> None:
        keys = house.add("a"), house.add("b"), house.add("c", tenant="other")
        async with house.open() as gateway:
            for key in (*keys, keys[0]):
                await house.chat(key)
            _, all_rows = await house.admin("GET", "/admin/usage")
            _, by_tenant = await house.admin("GET", "/admin/usage?by=tenant")
            status, told, _ = await nightside(
                "gateway", "usage", "--by", "key", "--admin", gateway.admin_url, "--token-file", _token(house)
            )
        rows = {(row["key"], row["tenant"]): row["requests"] for row in all_rows["rows"]}
        assert rows == {("a", "acme"): 2, ("b", "acme"): 1, ("c", "other"): 1}
        assert all(row["prompt_tokens"] > 0 for row in all_rows["rows"])
        assert [(row["tenant"], row["requests"]) for row in by_tenant["rows"]] == [("acme", 3), ("other", 1)]
        assert status == 0
        assert [line.split()[1:3] for line in told.splitlines()[1:]] == [["a", "2"], ["b", "1"], ["c", "1"]]

    async def test_a_day_that_is_none_is_said_to_be(self, house: House) -> None:
        house.add("a")
        async with house.open():
            assert (await house.admin("GET", "/admin/usage?from=yesterday"))[0] == 400
            assert (await house.admin("GET", "/admin/usage?by=colour"))[0] == 400


class TestKeysOverTheAdminAddress:
    async def test_a_key_s_whole_life(self, house: House, capsys: pytest.CaptureFixture[str]) -> None:
        house.add("a")
        async with house.open():
            status, made = await house.admin("POST", "/admin/keys", {"id": "new", "tenant": "acme", "concurrency": 4})
            assert (status, await house.chat(made["key"])) == (201, "answered")
            status, rotated = await house.admin("POST", "/admin/keys/new/rotate", {"keep": "1h"})
            assert [await house.chat(made["key"]), await house.chat(rotated["key"])] == ["answered", "answered"]
            _, listed = await house.admin("GET", "/admin/keys")
            (shown,) = (each for each in listed["keys"] if each["id"] == "new")
            assert shown["concurrency"] == 4
            assert {"last_used", "old_last_used", "old_until"} <= shown.keys()
            assert "hash" not in str(listed)
            assert (await house.admin("PATCH", "/admin/keys/new", {"disabled": True}))[1]["disabled"] is True
            assert await house.chat(rotated["key"]) == "invalid_api_key"
            assert (await house.admin("DELETE", "/admin/keys/new"))[0] == 204
            assert (await house.admin("DELETE", "/admin/keys/new"))[0] == 404
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [line["event"] for line in lines if line.get("key") == "new" and line["level"] == "warning"] == [
            "api_key_added",
            "api_key_rotated",
            "api_key_changed",
            "api_key_removed",
        ]

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"tenant": "acme"}, "id: is missing"),
            ({"id": "a", "tenant": "acme"}, "keys[1].id: 'a' is used twice"),
            ({"id": "b", "tenant": "acme", "colour": "red"}, "keys[1].colour: is not a known key"),
            ({"id": "b", "tenant": "acme", "expires": "2020-01-01"}, "expires: 2020-01-01 is in the past"),
            ([], "send a JSON object"),
        ],
    )
    async def test_what_the_file_would_not_take_is_refused(self, house: House, body: object, said: str) -> None:
        house.add("a")
        async with house.open():
            status, told = await house.admin("POST", "/admin/keys", body)
        assert status == 400
        assert said in told["error"]

    async def test_only_for_operators_who_show_a_token(self, house: House) -> None:
        house.add("a")
        async with house.open():
            assert (await house.admin("GET", "/admin/keys", authorization="Bearer other"))[0] == 401
        async with house.open(replace(house.config, admin_token=None)):
            for method, path in (("GET", "/admin/keys"), ("POST", "/admin/keys"), ("DELETE", "/admin/keys/a")):
                assert (await house.admin(method, path, {}))[0] == 403

    async def test_not_from_a_page_in_their_browser(self, house: House) -> None:
        house.add("a")
        async with house.open() as gateway:
            asked = house.session.post(f"{gateway.admin_url}/admin/keys", data=b'{"id":"b"}', headers=TOKEN)
            async with asked as response:
                assert response.status == 415


def _token(house: House) -> Path:
    file = house.keys.parent / "token"
    file.write_text("t0ken")
    file.chmod(0o600)
    return file
