"""A real gateway with everything that it may hold held at once, compared with the figure of `gateway check`."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.core.vocabulary import GatewayId, ResidencyStamp
from gateway.peers import codec
from gateway.request.legs import OutboundRequest
from mesh.clock import Clock
from tests.fakes.engine import FakeEngine, hang
from tests.support.core import EU, MODEL, TENANT, US, profile, rule
from tests.support.exchanging import raw_origin
from tests.support.orders import forward_order
from tests.support.processes import Process, gateway_process, region_file
from tests.support.programs import nightside
from tests.support.wire import posted

MIB = 1 << 20
BODY = 4 * MIB
MESSAGE = 8 * MIB
SMALL: dict[str, Any] = {
    # Requests are sent to engines at once, and none is held, under the layered rule with blind pushing.
    "placement": {
        "policy": "prefix",
        "prefix_index_max": "1MiB",
        "peer_queue_length_max": 1000,
        "stored_responses_max": 100,
    },
    "decisions": {"held_max": "1MiB"},
    "pushing": {"mode": "blind"},
}


@dataclass
class Stand:
    gateway: Process
    peers_at: str
    told_bytes: int
    """Memory that `gateway check` predicts."""
    stack: AsyncExitStack

    @property
    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.gateway.process.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(peak) * 1024

    def check(self) -> None:
        """Assert that the peak is at least half of the prediction, and never above it."""
        assert self.told_bytes / 2 <= self.peak_bytes <= self.told_bytes

    async def says(self, data: bytes) -> asyncio.StreamReader:
        """Connect a client that stays, and send the data."""
        host, _, port = self.gateway.http_url.rpartition("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.stack.callback(writer.close)
        writer.write(data)
        await writer.drain()
        return reader

    async def forwards(self, count: int) -> Counter[str]:
        """Kinds of the first answers to that many simultaneous forwards, which stay open."""
        origin = await self.stack.enter_async_context(raw_origin(self.peers_at))
        for number in range(1, count + 1):
            await origin.begin_raw(number, self._forward(f"r-{number}"))
        while True:
            first: dict[int, str] = {}
            for frame in origin.heard:
                for kind in ("accepted", "refused"):
                    if frame.HasField(kind):
                        first.setdefault(frame.forward, kind)
            if len(first) == count:
                return Counter(first.values())
            assert await origin.hear(), "the stream ended first"

    def _forward(self, request_id: str) -> bytes:
        body = json.dumps({"model": MODEL, "stream": True, "prompt": "x" * (MESSAGE - 100_000)}).encode()
        order = forward_order(request_id, "us-1", stamp=ResidencyStamp(EU, TENANT, rule(US, EU), "digest"))
        request = OutboundRequest(profile(request_id), "/v1/completions", (), body)
        return codec.forward_to_pb(order, request, GatewayId("eu-1"), Clock().now_ns()).SerializeToString()


@asynccontextmanager
async def stand(
    folder: Path, ports: Callable[[], int], engine: FakeEngine, *, with_peer: bool, **sections: Any
) -> AsyncIterator[Stand]:
    engine.plays(hang)
    listen = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "peers": f"127.0.0.1:{ports()}"}
    peer = {"gateway": "eu-1", "region": EU.region, "jurisdiction": EU.jurisdiction, "address": f"127.0.0.1:{ports()}"}
    peers = [peer] if with_peer else []
    file = region_file(folder, "us-1", US, engine, listen=listen, peers=peers, **SMALL, **sections)
    status, _, told = await nightside("gateway", "check", file)
    assert status == 0, told
    (told_mib,) = re.findall(r"memory: at most (\d+)MiB", told)
    async with gateway_process(file, fresh=True) as gateway, AsyncExitStack() as stack:
        yield Stand(gateway, listen["peers"], int(told_mib) * MIB, stack)


async def test_clients_that_hold_all_they_may(
    tmp_path: Path, engine: FakeEngine, unused_tcp_port_factory: Callable[[], int]
) -> None:
    limits = {"body_max": "4MiB", "bodies_held_max": "192MiB", "connections_max": 60, "requests_max": 48}
    peering = {"message_max": "5MiB", "forwards_held_max": "5MiB", "forwards_held_peer_max": "5MiB", "forwards_max": 4}
    sections = {"limits": limits, "peering": peering}
    body = json.dumps({"model": MODEL, "messages": ""}).encode()
    body = body[:-2] + b"x" * (BODY - len(body)) + body[-2:]
    async with stand(tmp_path, unused_tcp_port_factory, engine, with_peer=False, **sections) as gateway:
        packed = posted("content-encoding: gzip", body=gzip.compress(body))
        for _ in range(24):
            await gateway.says(posted(body=body))
            await gateway.says(packed)
        await engine.arrived.reaches(48)
        refused = await gateway.says(posted(body=body))
        assert b" 503 " in await refused.readline()
        for _ in range(11):
            await gateway.says(b"GET / HTTP/1.1\r\nx: " + b"x" * 10_000)
        gateway.check()


async def test_peers_that_hold_all_they_may(
    tmp_path: Path, engine: FakeEngine, unused_tcp_port_factory: Callable[[], int]
) -> None:
    limits = {"body_max": "4MiB", "bodies_held_max": "4MiB", "connections_max": 10, "requests_max": 10}
    held = {"forwards_held_max": "192MiB", "forwards_held_peer_max": "192MiB", "forwards_max": 40}
    sections = {"limits": limits, "peering": {"message_max": "8MiB", **held}}
    async with stand(tmp_path, unused_tcp_port_factory, engine, with_peer=True, **sections) as gateway:
        words = await gateway.forwards(60)
        assert words["accepted"] + words["refused"] == 60
        assert words["accepted"] * MESSAGE <= 192 * MIB + MESSAGE
        assert words["accepted"] >= 20
        running = (words["accepted"] - 1) * MESSAGE  # messages are a little smaller; freed copies depend on timing
        assert running <= gateway.peak_bytes <= gateway.told_bytes
