"""A gateway without engines in front of two others of its region, as processes: one of these is killed or falls silent,
and the SDK at the front sees whole answers."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest
import yaml
from click.testing import CliRunner

import nightside
from tests.fakes.engine import DONE, ROLE, STOP, FakeEngine, answer, hang, stream, stream_and_hang, token
from tests.support.core import MODEL, US
from tests.support.gateways import region_document, until
from tests.support.processes import QUICK_OBSERVATION, QUICK_PEERS, QUICK_PROBES, Process, gateway_process, region_file
from tests.support.programs import ROOT
from tests.support.served import HELLO
from tests.support.walk import blocks_of

Ports = Callable[[], int]
QUICK = {"probes": QUICK_PROBES, "peering": QUICK_PEERS, "observation": QUICK_OBSERVATION, "insecure": True}
PAGE = (ROOT / "docs/how_to/front.md").read_text()
SNIPPET, ENTRY = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
"""File of the front, and what the gateways behind it add to theirs."""
FRONT, BEHIND = "us-east-1-front", ("us-east-1a", "us-east-1b")


def region_files(folder: Path, ports: Ports, engines: Sequence[FakeEngine]) -> list[Path]:
    """The page's gateway in front, at free ports, and the two behind it with an engine each."""
    at = {name: f"127.0.0.1:{ports()}" for name in (FRONT, *BEHIND)}
    example = yaml.safe_load(SNIPPET)
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


def test_the_file_of_the_page_passes_the_check_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "front.yaml").write_text(SNIPPET)
    (block,) = blocks_of(PAGE)
    commands = [shlex.split(line) for line in block.commands.replace("\\\n", " ").splitlines()]
    assert [words[1:3] for words in commands[2:]] == [["gateway", "check"], ["gateway", "run"], ["gateway", "status"]]
    for words in (*commands[:2], commands[2][:4]):
        done = CliRunner().invoke(nightside.main, words[1:])
        assert done.exit_code == 0, f"{words}: {done.output}"


def test_gateways_behind_name_the_one_in_front_as_it_names_itself() -> None:
    (entry,), front = yaml.safe_load(ENTRY)["peers"], yaml.safe_load(SNIPPET)
    assert [entry[key] for key in ("gateway", "region", "jurisdiction")] == [
        front[key] for key in ("gateway", "region", "jurisdiction")
    ]


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
