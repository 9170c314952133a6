"""Other behaviour of clients than calling a model: preflights, HEAD, wrong base URLs, tokenizers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from msgspec.structs import replace

from gateway.config.sections import CorsConfig, GatewayConfig
from gateway.security.keys import mint
from loadgen.engine.tokens import token_ids
from tests.support.core import MODEL
from tests.support.served import HELLO, Served, served

PAGE = "https://chat.example.net"
ASKS = {"origin": PAGE, "access-control-request-method": "POST"}
SDK_HEADERS = "authorization,content-type,x-stainless-arch,x-stainless-lang"


@pytest.fixture
async def open_to_pages(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Served]:
    """Gateway that requires keys, which no preflight carries."""
    secret, kept = mint("page")
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps({"keys": [{"id": "page", "hash": str(kept), "tenant": "acme"}]}))
    (tmp_path / "secret").write_text(secret)

    def change(config: GatewayConfig) -> GatewayConfig:
        return replace(config, keys_file=keys, cors=CorsConfig(origins=(PAGE,)))

    async with served(tmp_path, unused_tcp_port_factory, change=change) as up:
        yield up


class TestCors:
    async def test_a_listed_page_may_send_what_it_likes(
        self, open_to_pages: Served, session: aiohttp.ClientSession
    ) -> None:
        asked = {**ASKS, "access-control-request-headers": SDK_HEADERS}
        async with session.options(f"{open_to_pages.openai_url}/chat/completions", headers=asked) as response:
            assert response.status == 204
            told = {name.lower(): value for name, value in response.headers.items()}
        assert told["access-control-allow-origin"] == PAGE
        assert told["access-control-allow-methods"] == "OPTIONS, POST"
        assert told["access-control-allow-headers"] == SDK_HEADERS
        assert (told["access-control-max-age"], told["vary"]) == ("600", "origin")
        assert "access-control-allow-credentials" not in told

    @pytest.mark.parametrize("origin", ["https://evil.example.net", "null", f"{PAGE}.evil.net", PAGE.upper(), ""])
    async def test_no_other_page_may(self, open_to_pages: Served, session: aiohttp.ClientSession, origin: str) -> None:
        url = f"{open_to_pages.openai_url}/chat/completions"
        async with session.options(url, headers={**ASKS, "origin": origin}) as response:
            assert not [name for name in response.headers if name.lower().startswith("access-control")]

    async def test_every_answer_says_so_errors_too(
        self, open_to_pages: Served, session: aiohttp.ClientSession, tmp_path: Path
    ) -> None:
        key = {"authorization": f"Bearer {(tmp_path / 'secret').read_text()}"}
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
        asked: list[tuple[str, str, Any, dict[str, str]]] = [
            ("POST", "/v1/chat/completions", {**body, "stream": True}, key),
            ("POST", "/v1/chat/completions", body, key),
            ("POST", "/v1/chat/completions", {**body, "model": "none"}, key),
            ("POST", "/v1/chat/completions", body, {}),
            ("GET", "/v1/models", None, key),
            ("GET", "/nowhere", None, key),
            ("PUT", "/v1/models", None, key),
        ]
        statuses = []
        for method, path, document, headers in asked:
            url = f"{open_to_pages.url}{path}"
            async with session.request(method, url, json=document, headers={**headers, "origin": PAGE}) as response:
                statuses.append(response.status)
                assert response.headers.getall("access-control-allow-origin") == [PAGE], path
                assert response.headers["access-control-expose-headers"] == "*"
        assert statuses == [200, 200, 404, 401, 200, 404, 405]

    async def test_by_default_nobody_is_told_anything(
        self, tmp_path: Path, unused_tcp_port_factory: Callable[[], int], session: aiohttp.ClientSession
    ) -> None:
        async with served(tmp_path, unused_tcp_port_factory) as up:
            async with session.options(f"{up.openai_url}/chat/completions", headers=ASKS) as response:
                assert (response.status, response.headers["allow"]) == (204, "OPTIONS, POST")
                assert "access-control-allow-origin" not in response.headers
            async with session.get(f"{up.openai_url}/models", headers={"origin": PAGE}) as response:
                assert not {"vary", "access-control-allow-origin"} & set(response.headers)


class TestHeadAndOptions:
    @pytest.mark.parametrize("path", ["/", "/health", "/ready", "/v1/models", f"/v1/models/{MODEL}", "/openapi.yaml"])
    async def test_head_is_get_without_its_body(
        self, slow: Served, session: aiohttp.ClientSession, path: str, across: bool
    ) -> None:
        async with session.get(slow.url + path) as asked, session.head(slow.url + path) as response:
            assert (response.status, response.headers["content-length"]) == (200, asked.headers["content-length"])
            assert await response.read() == b""

    async def test_options_tell_what_may_be_done(self, up: Served, session: aiohttp.ClientSession) -> None:
        async with session.options(f"{up.openai_url}/models") as response:
            assert (response.status, response.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        async with session.options(f"{up.url}/nowhere") as response:
            assert response.status == 404


async def test_a_base_url_without_v1_is_told_what_is_missing(up: Served) -> None:
    async with openai.AsyncOpenAI(base_url=up.url, api_key="client", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match=r"POST /chat/completions: the base URL lacks /v1"):
            await client.chat.completions.create(model=MODEL, messages=HELLO)


class TestTokenizers:
    async def test_of_an_engine_that_has_one(self, up: Served, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{up.url}/tokenize", json={"model": MODEL, "prompt": "hello world"}) as response:
            told = await response.json()
        assert (response.status, told["count"], told["tokens"]) == (200, 3, list(token_ids(b"hello world")))
        async with session.post(f"{up.url}/detokenize", json={"model": MODEL, "tokens": told["tokens"]}) as response:
            assert (await response.json())["prompt"].rstrip("\0") == "hello world"
