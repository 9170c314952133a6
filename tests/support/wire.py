"""A client that sends exactly the bytes of a test, over a bare connection."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.app.gateway import GatewayHandle

CHAT_PATH = "/v1/chat/completions"
CHAT_BODY = b'{"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": true}'


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    def post(self, *headers: str, body: bytes = CHAT_BODY) -> None:
        self.send(posted(*headers, body=body))

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        return int(lines[0].split()[1]), headers

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read an answer that announces its length."""
        status, headers = await self.head()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def refusal(self) -> tuple[int, str]:
        status, headers, body = await self.answer()
        assert headers["content-type"] == "application/json"
        code: str = json.loads(body)["error"]["code"]
        return status, code

    async def is_closed(self) -> bool:
        """Wait for the end of the connection. Bytes before it count as not closed."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def until_closed(self) -> bytes:
        """Read up to the end of the connection, however it ends."""
        received = bytearray()
        try:
            while data := await self.reader.read(2**16):
                received += data
        except ConnectionResetError:
            pass
        return bytes(received)

    def reset(self) -> None:
        """Leave as a crashed client does: the gateway's end gets an error, not an end of file."""
        own = self.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def posted(*headers: str, body: bytes = CHAT_BODY) -> bytes:
    """Bytes of one chat request."""
    lines = [f"POST {CHAT_PATH} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def wire(gateway: GatewayHandle, unread_bytes_max: int = 2**16) -> AsyncIterator[Wire]:
    address = gateway.http_address
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=unread_bytes_max)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()
