"""Runs one region's clients on a host of their own, as `python -m loadgen.studies.wan.client_process FILE`, until
SIGTERM: the real OpenAI SDK. Every call is written down at the end, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from gateway.core.vocabulary import RegionName
from loadgen.names import NameResolver
from loadgen.studies.failover.clients import Clients, SdkCall
from mesh.clock import Clock

STARTED = "started"
"""Word that a process prints once its clients ask."""


class SdkClientSettings(msgspec.Struct, frozen=True):
    region: RegionName
    url: str
    """URL with the mesh's one name."""
    model: str
    servers: tuple[tuple[str, int], ...]
    """Name servers, in the order in which they are asked."""
    name_timeout_s: float
    """Time-out of one question to a name server."""
    network: str
    users: int
    answer_tokens: int
    timeout_s: float
    """The SDK's time-out for each part of an answer."""
    pause_s: float
    prompt_bytes: int
    drain_s: float
    """Time for calls to end once no further one is made."""
    log: str
    """File for the calls."""


def main(file: Path) -> None:
    settings = msgspec.json.decode(file.read_bytes(), type=SdkClientSettings)
    calls = asyncio.run(_calls(settings))
    Path(settings.log).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in calls))


async def _calls(settings: SdkClientSettings) -> list[SdkCall]:
    clock = Clock()
    resolver = NameResolver(settings.servers, settings.network, clock, settings.name_timeout_s)
    clients = Clients(
        settings.region, settings.url, settings.model, resolver, clock, timeout_s=settings.timeout_s,
        pause_s=settings.pause_s, answer_tokens=settings.answer_tokens, prompt_bytes=settings.prompt_bytes,
    )  # fmt: skip
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(clients.run(settings.users))
        sys.stdout.write(f"{STARTED}\n")
        sys.stdout.flush()
        await stop.wait()
        clients.is_over = True
        await asyncio.wait([running], timeout=settings.drain_s)
        running.cancel()
    return clients.asked


if __name__ == "__main__":
    main(Path(sys.argv[1]))
