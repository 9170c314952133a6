"""A gateway without engines in front of two others of its region, as processes: one of these is killed, and the SDK at
the front sees whole answers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import openai
import yaml

from tests.fakes.engine import DONE, ROLE, STOP, FakeEngine, stream, stream_and_hang, token
from tests.support.core import MODEL, US
from tests.support.gateways import region_document
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
