"""A gateway without engines in front of two others of its region, as processes: one of these is killed or falls silent,
and the SDK at the front sees whole answers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest
import yaml

from tests.fakes.engine import DONE, ROLE, STOP, FakeEngine, answer, hang, stream, stream_and_hang, token
from tests.support.core import MODEL, US
from tests.support.gateways import region_document, until
from tests.support.processes import QUICK_OBSERVATION, QUICK_PEERS, QUICK_PROBES, Process, gateway_process, region_file
from tests.support.programs import ROOT
from tests.support.served import HELLO

Ports = Callable[[], int]
QUICK = {"probes": QUICK_PROBES, "peering": QUICK_PEERS, "observation": QUICK_OBSERVATION, "insecure": True}
FRONT, BEHIND = "us-east-1-front", ("us-east-1a", "us-east-1b")


def region_files(folder: Path, ports: Ports, engines: Sequence[FakeEngine]) -> list[Path]:
    """The example's gateway in front, at free ports, and the two behind it with an engine each."""
    at = {name: f"127.0.0.1:{ports()}" for name in (FRONT, *BEHIND)}
    example = yaml.safe_load((ROOT / "docs/examples/front.yaml").read_text())
    assert (example["gateway"], [each["gateway"] for each in example["peers"]]) == (FRONT, list(BEHIND))
    behind_it = [{**each, "address": at[each["gateway"]]} for each in example["peers"]]
    listen = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    front = region_document(folder, FRONT, US, peers=behind_it, listen={**listen, "peers": at[FRONT]}, **QUICK)
    files = [folder / "front.yaml"]
    files[0].write_text(yaml.safe_dump(front))
    known = [{"gateway": FRONT, "region": US.region, "jurisdiction": US.jurisdiction, "address": at[FRONT]}]
    for name, engine in zip(BEHIND, engines, strict=True):
        files.append(region_file(folder, name, US, engine, listen={**listen, "peers": at[name]}, peers=known, **QUICK))
    return files


@dataclass
class Site:
    """Gateway in front, and those behind it with their engines."""

    front: Process
    behind: list[Process]
    engines: list[FakeEngine]
    session: aiohttp.ClientSession

    async def serving(self) -> int:
        """Wait until one of the engines has a request. Returns its number."""
        await until(lambda: any(each.received for each in self.engines))
        (serving,) = (number for number, each in enumerate(self.engines) if each.received)
        return serving


@pytest.fixture
async def site(tmp_path: Path, unused_tcp_port_factory: Ports) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine().serving()) for _ in BEHIND]
        front_file, *files = region_files(tmp_path, unused_tcp_port_factory, engines)
        behind = [await stack.enter_async_context(gateway_process(file)) for file in files]
        front = await stack.enter_async_context(gateway_process(front_file))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await front.until_metric(session, lambda usable: usable == 2, "nightside_peers_usable")
        yield Site(front, behind, engines, session)


@pytest.fixture
async def client(site: Site) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK without its own retries."""
    url = f"{site.front.http_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="client", max_retries=0) as made:
        yield made


ENDS = pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])


@ENDS
async def test_a_gateway_that_dies_is_a_pause_to_the_clients_of_the_one_in_front(
    site: Site, client: openai.AsyncOpenAI, ends: signal.Signals
) -> None:
    begun, rest = (ROLE, token("Hel"), token("lo")), (ROLE + token(" world"), STOP, DONE)
    for each in site.engines:
        each.plays(stream_and_hang(*begun))
    said = ""
    async for chunk in await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True):
        said += chunk.choices[0].delta.content or "" if chunk.choices else ""
        if said == "Hello":
            serving = await site.serving()
            site.engines[1 - serving].plays(stream(*rest))
            site.behind[serving].signal(ends)
    assert said == "Hello world"
    later = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert [chunk.choices[0].delta.content async for chunk in later] == ["", " world", ""]
    if ends is signal.SIGSTOP:
        assert await taken_back(site) == 1


@ENDS
async def test_one_that_dies_before_the_first_byte_is_not_noticed_at_all(
    site: Site, client: openai.AsyncOpenAI, ends: signal.Signals
) -> None:
    for each in site.engines:
        each.plays(hang)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(client.chat.completions.create(model=MODEL, messages=HELLO))
        serving = await site.serving()
        site.engines[1 - serving].plays(answer())
        site.behind[serving].signal(ends)
    assert asked.result().choices[0].message.content == "Hello"
    if ends is signal.SIGSTOP:
        assert await taken_back(site) == 1


async def taken_back(site: Site) -> float:
    return await site.front.metric(site.session, "nightside_attempts_total", target="peer", result="taken_back")
