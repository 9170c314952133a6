"""Bytes between gateways are carried unchanged and counted, through ports that the study puts between them."""

from __future__ import annotations

import asyncio

from loadgen.studies.capacity.links import counted_links


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
