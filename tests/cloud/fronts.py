"""Proxies between a DNS provider of the controller and a name server, which lose some of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.message
import dns.opcode

from mesh.values import Address
from tests.support.listening import listening


@asynccontextmanager
async def swallowing(server: Address, *, answers_to: dns.opcode.Opcode) -> AsyncIterator[Address]:
    """Proxy that forwards each question to the server, and closes the connection in place of answers to this opcode."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection(server.host, server.port)
        try:
            while True:
                length = await reader.readexactly(2)
                question = await reader.readexactly(int.from_bytes(length, "big"))
                their_writer.write(length + question)
                length = await their_reader.readexactly(2)
                answer = await their_reader.readexactly(int.from_bytes(length, "big"))
                if (question[2] >> 3) & 15 == answers_to:
                    return
                writer.write(length + answer)
        except asyncio.IncompleteReadError:
            return
        finally:
            their_writer.close()

    async with listening(pass_on) as port:
        yield Address("127.0.0.1", port)
