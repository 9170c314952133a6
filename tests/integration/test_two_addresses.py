"""Unmodified clients at a name that leads to two gateways, of which one refuses: the controller's records, a
real DNS server with them, a stub resolver, the official SDKs for Python, and curl."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import anthropic
import dns.resolver
import openai
import pytest
import structlog
from msgspec.structs import replace

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.records import areas_of
from controller.core.vocabulary import GatewayEntry
from gateway.core.vocabulary import GatewayId, RegionName
from mesh.clock import Clock
from mesh.naming.service import NameService
from mesh.naming.tree import RecordTree
from mesh.values import Address
from tests.support.core import EU, MODEL, US, policy
from tests.support.served import HELLO, HELLO_ANSWERED, Served, in_thread

NAME = "mesh.example"
ALIVE, DEAD = "127.0.0.1", "127.0.0.2"
POLICIES = {RegionName(place.region): policy(place) for place in (US, EU)}


@pytest.fixture
def across() -> bool:
    return False


def records(own: str, further: str) -> RecordTree:
    """Tree for clients on this machine, who are in the US: addresses of the gateway there, and of one in the EU."""
    gateways = [
        GatewayEntry(GatewayId(name), place, (at,)) for name, place, at in (("us", US, own), ("eu", EU, further))
    ]
    areas = areas_of(gateways, gateways, POLICIES.get, Geography(), ControllerConfig(further_gateways=1))
    areas = tuple(replace(each, networks=("127.0.0.0/8",)) if each.region == US.region else each for each in areas)
    return RecordTree(1, 5, areas, (), f"{NAME}.", tls=False)


@pytest.fixture(params=[(DEAD, ALIVE), (ALIVE, DEAD)], ids=["the nearest refuses", "the further refuses"])
async def url(request: pytest.FixtureRequest, up: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """URL of the mesh by its name, which this process resolves at the mesh's own DNS server."""
    names = NameService(Clock(), structlog.get_logger())
    names.apply(records(*request.param))
    await names.start([Address("127.0.0.1", 0)])
    monkeypatch.setattr(socket, "getaddrinfo", stub_resolver(names.addresses[0]))
    try:
        yield f"http://{NAME}:{urlsplit(up.url).port}"
    finally:
        await names.stop()


def stub_resolver(server: Address) -> Callable[..., list[Any]]:
    """Resolver in place of the system's, which asks one DNS server. It puts the address that refuses first: DNS
    promises no order."""
    resolver, of_system = dns.resolver.Resolver(configure=False), socket.getaddrinfo
    resolver.nameservers, resolver.port = [server.host], server.port

    def getaddrinfo(host: str | bytes, *more: Any, **options: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        told = [each.to_text() for each in resolver.resolve(f"{name}.", "A")] if name == NAME else [name]
        assert name != NAME or sorted(told) == [ALIVE, DEAD]
        return [found for each in sorted(told, reverse=True) for found in of_system(each, *more, **options)]

    return getaddrinfo


async def openai_async(url: str) -> str | None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="client", max_retries=0) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6)
    return answer.choices[0].message.content


async def openai_blocking(url: str) -> str | None:
    said: list[str | None] = []

    def ask() -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="client", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6)
            said.append(answer.choices[0].message.content)

    await in_thread(ask)
    return said[0]


async def anthropic_async(url: str) -> str | None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="client", max_retries=0) as client:
        message = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=6)
    (block,) = message.content
    return block.text if block.type == "text" else None


@pytest.mark.parametrize("ask", [openai_async, openai_blocking, anthropic_async])
async def test_an_sdk_goes_on_to_the_next_address_without_a_retry(
    url: str, ask: Callable[[str], Awaitable[str | None]]
) -> None:
    assert await ask(url) == HELLO_ANSWERED


async def test_curl_goes_on_to_the_next_address(up: Served) -> None:
    port = urlsplit(up.url).port
    body = json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 6})
    call = await asyncio.create_subprocess_exec(
        "curl",
        *("--silent", "--show-error", "--fail-with-body", "--resolve", f"{NAME}:{port}:{DEAD},{ALIVE}"),
        *("--json", body, f"http://{NAME}:{port}/v1/chat/completions"),
        stdout=asyncio.subprocess.PIPE,
    )
    answer, _ = await call.communicate()
    assert call.returncode == 0
    assert json.loads(answer)["choices"][0]["message"]["content"] == HELLO_ANSWERED
