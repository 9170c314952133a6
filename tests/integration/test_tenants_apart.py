"""One tenant guesses another's prompt: neither engine nor placement reveals if the guess is right."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.app.gateway import GatewayHandle
from loadgen.engine.server import serve_engines
from tests.support.core import MODEL, US
from tests.support.gateways import free_replicas, region_document, serving_file, until
from tests.support.served import QUICK

SECRET, WRONG = ({"role": "user", "content": letter * 4000} for letter in "sw")


class House:
    def __init__(self, gateway: GatewayHandle, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._session = session

    async def cached_tokens(self, tenant: str, message: dict[str, str], **more: object) -> int:
        """Tokens of the prompt that the engine reports as cached."""
        body = {"model": MODEL, "messages": [message], "max_tokens": 2, **more}
        url, headers = f"{self.gateway.http_url}/v1/chat/completions", {"x-nightside-tenant": tenant}
        async with self._session.post(url, json=body, headers=headers) as response:
            document = json.loads(await response.read())
        assert response.status == 200, document
        return int(document["usage"]["prompt_tokens_details"]["cached_tokens"])


@asynccontextmanager
async def house(folder: Path, **changes: Any) -> AsyncIterator[House]:
    async with serve_engines([QUICK]) as (engine,), aiohttp.ClientSession() as session:
        replicas = [{"id": "a", "url": engine.url, "models": [MODEL]}]
        path = folder / "us.yaml"
        document = region_document(folder, "us-1", US, replicas=replicas, trust_tenant_header=True, **changes)
        path.write_text(yaml.safe_dump(document))
        async with serving_file(path) as gateway:
            await until(lambda: free_replicas(gateway) == 1)
            yield House(gateway, session)


async def test_a_right_guess_looks_like_a_wrong_one(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        assert await made.cached_tokens("acme", SECRET) == 0
        assert await made.cached_tokens("acme", SECRET) > 900, "its owner is served from the cache"
        right, wrong = [await made.cached_tokens("eve", guess) for guess in (SECRET, WRONG)]
    assert right == wrong == 0


async def test_a_salt_of_the_client_s_own_does_not_open_another_s_cache(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        await made.cached_tokens("acme", SECRET, cache_salt="ours")
        assert await made.cached_tokens("acme", SECRET, cache_salt="ours") > 900
        assert await made.cached_tokens("eve", SECRET, cache_salt="ours") == 0
        assert await made.cached_tokens("acme", SECRET) == 0, "a salt still sets apart within a tenant"


@pytest.mark.parametrize("shares", [{"isolate_tenants": False}, {"shared_tenants": ["acme", "sister"]}])
async def test_who_shares_on_purpose_is_served_from_one_cache(tmp_path: Path, shares: dict[str, object]) -> None:
    async with house(tmp_path, engine_cache=shares) as made:
        await made.cached_tokens("acme", SECRET)
        assert await made.cached_tokens("sister", SECRET) > 900


async def test_placement_knows_no_more_of_a_right_guess(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        for tenant, guess in (("acme", SECRET), ("eve", SECRET), ("eve", WRONG)):
            await made.cached_tokens(tenant, guess)
        async with made._session.get(f"{made.gateway.admin_url}/metrics") as response:
            page = await response.text()
    (unmatched,) = re.findall(r'nightside_prefix_matched_share_bucket\{.*le="0.0".*\} (\S+)', page)
    assert float(unmatched) == 3
