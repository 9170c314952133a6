"""Bytes between gateways are counted and carried unchanged, by ports between them; each gateway of a mesh is asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.bench.relay import wire
from loadgen.bench.relay.engine import EngineConnection, Pages
from loadgen.bench.relay.main import RelayPlan
from loadgen.bench.relay.measures import Effort, RelayBench, Subject
from loadgen.studies.capacity.links import counted_links
from loadgen.studies.capacity.measuring import _Running, _Sizes


async def test_bytes_are_carried_unchanged_and_counted_in_both_directions() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(5)).upper() * 2)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, counted_links() as links:
        document = {"peers": [{"address": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"}]}
        await links.lead(document)
        assert document["peers"][0]["address"] != f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        host, _, port = document["peers"][0]["address"].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello")
        assert await reader.read() == b"HELLOHELLO"
        assert links.carried == 15
        writer.close()


async def test_a_gateway_that_does_not_listen_yet_is_no_fault(unused_tcp_port: int) -> None:
    async with counted_links() as links:
        host, _, port = (await links.way_to(f"127.0.0.1:{unused_tcp_port}")).partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
    assert links.carried == 0


BRIEF = Effort(rounds=3, warm_s=0.0, stream_window_s=0.2, ramp_s=0.05, settle_s=0.1)
FORWARDS = b'nightside_forwards_sent_total{peer="far"} 7\n'


@asynccontextmanager
async def ways_to_an_engine() -> AsyncIterator[tuple[_Running, RelayBench, _Sizes]]:
    """Counted ways to an engine in the place of gateways."""
    loop, pages = asyncio.get_running_loop(), Pages(wire.page(FORWARDS))
    plan = RelayPlan(
        effort=BRIEF, measures=(), relays=(), rivals=Path(), relay_core=0, load_core=1, sibling_core=1, seed=1
    )
    sizes = _Sizes(Path(), plan, Console(quiet=True))
    server = await loop.create_server(lambda: EngineConnection(pages, loop), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, counted_links() as links:
        ports = [int((await links.way_to(address)).rpartition(":")[2]) for _ in range(2)]
        names = ("near", "far")
        subjects = [Subject(name, port, {name: os.getpid()}) for name, port in zip(names, ports, strict=True)]
        bench = RelayBench(BRIEF, [server.sockets[0].getsockname()[1]], sizes._rng)
        yield _Running(subjects, [address, address], links), bench, sizes


async def test_bytes_of_forwards_and_of_their_chunks_are_counted_apart() -> None:
    async with ways_to_an_engine() as (ran, bench, sizes):
        whole, chunk = await sizes._forwarded(ran, bench), await sizes._forwarded_streams(ran, bench)
    assert whole == pytest.approx(256 + len(wire.ANSWER_BODY), rel=0.9)
    assert whole > 256 + len(wire.ANSWER_BODY)
    assert chunk == pytest.approx(len(wire.http_chunk(wire.TOKEN_EVENT)), rel=0.2)


async def test_a_mesh_is_asked_at_all_gateways_and_its_forwards_are_those_meanwhile() -> None:
    async with ways_to_an_engine() as (ran, bench, sizes):
        mesh = await sizes._mesh(ran, bench)
    assert mesh.forwarded_share == 0.0
    assert min(mesh.took_s, mesh.requests_per_s, mesh.cores) > 0.0
