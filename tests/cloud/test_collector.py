"""Traces that gateways send to an independent collector: rotel (from PyPI) takes them over gRPC or HTTP, and exports
them to the tests' own collector.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config.tracing import Protocol, TracingConfig
from tests.cloud.programs import rotel
from tests.fakes.collector import FakeCollector
from tests.support.core import MS
from tests.support.gateways import CHAT
from tests.support.regions import Mesh, busy_us_and_free_eu

CANARY = "correct horse battery staple"
pytestmark = pytest.mark.needs("rotel")


@pytest.fixture
async def sink() -> AsyncIterator[FakeCollector]:
    async with FakeCollector().serving() as made:
        yield made


@pytest.fixture
async def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, unused_tcp_port_factory)
    yield made
    await made.close()


@pytest.mark.parametrize("protocol", Protocol)
async def test_one_trace_of_two_regions_goes_through_a_real_collector(
    protocol: Protocol, mesh: Mesh, sink: FakeCollector, tmp_path: Path
) -> None:
    program, ports = rotel(tmp_path, sink.grpc_url)
    await asyncio.to_thread(program.start, lambda: all(map(_listens, ports.values())))
    try:
        path = "" if protocol is Protocol.GRPC else "/v1/traces"
        endpoint = f"http://127.0.0.1:{ports[protocol]}{path}"
        tracing = TracingConfig(endpoint=endpoint, protocol=protocol, sampled_share=1.0, interval_ns=MS)
        us, eu = await busy_us_and_free_eu(mesh, tracing=tracing)
        asked = {**CHAT, "messages": [{"role": "user", "content": CANARY}]}
        async with mesh.session.post(f"{us.gateway.http_url}/v1/chat/completions", json=asked) as response:
            assert response.status == 200
            await response.read()
        await sink.has("forward", "placement", "placement", "chat llama", "chat llama", "chat llama")
    finally:
        program.kill()
    spans = sink.spans
    assert len({each.trace_id for each in spans}) == 1
    ids = {each.span_id for each in spans}
    (root,) = (each for each in spans if each.parent_id not in ids)
    assert (root.name, root.gateway, root.parent_id) == ("chat llama", "us-1", "")
    (forward,) = sink.named("forward")
    assert [each.gateway for each in sink.named("chat llama") if each.parent_id == forward.span_id] == ["eu-1"]
    assert eu.engine.received[-1].headers["traceparent"].split("-")[1] == root.trace_id
    assert CANARY.encode() not in b"".join(sink.raw)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
