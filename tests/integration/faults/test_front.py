"""A gateway without engines in front of two others of its region, as processes: one of these is killed, and the SDK at
the front sees whole answers."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import openai
import pytest
import yaml
from click.testing import CliRunner

import nightside
from tests.fakes.engine import DONE, ROLE, STOP, FakeEngine, stream, stream_and_hang, token
from tests.support.core import MODEL, US
from tests.support.gateways import region_document
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


async def test_a_killed_gateway_is_a_pause_to_the_clients_of_the_one_in_front(
    tmp_path: Path, unused_tcp_port_factory: Ports
) -> None:
    begun, rest = (ROLE, token("Hel"), token("lo")), (ROLE + token(" world"), STOP, DONE)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine().serving()) for _ in BEHIND]
        front_file, *files = region_files(tmp_path, unused_tcp_port_factory, engines)
        behind = [await stack.enter_async_context(gateway_process(file)) for file in files]
        front = await stack.enter_async_context(gateway_process(front_file))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await front.until_metric(session, lambda usable: usable == 2, "nightside_peers_usable")
        for each in engines:
            each.plays(stream_and_hang(*begun))
        client = await stack.enter_async_context(sdk_of(front))
        chunks = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        said = ""
        async for chunk in chunks:
            said += chunk.choices[0].delta.content or ""
            if said == "Hello":
                (serving,) = (number for number, each in enumerate(engines) if each.received)
                engines[1 - serving].plays(stream(*rest))
                behind[serving].signal(signal.SIGKILL)
        assert said == "Hello world"
        later = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert [chunk.choices[0].delta.content async for chunk in later] == ["", " world", ""]


def sdk_of(gateway: Process) -> openai.AsyncOpenAI:
    """The SDK without its own retries."""
    return openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key="client", max_retries=0)
