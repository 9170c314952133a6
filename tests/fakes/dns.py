"""A small real DNS server on loopback, over UDP and TCP, whose every answer a test writes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from mesh.values import Address
from tests.fakes.engine import Tally
from tests.support.listening import listening


class FakeDns:
    """DNS server that answers from the given records, and can fall silent or fail."""

    def __init__(self) -> None:
        self.address = Address("127.0.0.1", 0)
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 1
        self.rcode = dns.rcode.NOERROR
        self.failing: set[tuple[str, str]] = set()
        """Names and kinds of record that it fails to answer."""
        self.is_silent = False
        self.asked = Tally()
        self.truncates = False
        """True if answers over UDP are truncated, so that every client must repeat its question over TCP."""

    def set(self, name: str, kind: str, *values: str) -> None:
        self.records[name, kind] = list(values)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeDns]:
        loop = asyncio.get_running_loop()
        tcp_socket, udp_socket = _bound_pair()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=udp_socket)
        self.address = Address("127.0.0.1", udp_socket.getsockname()[1])
        try:
            async with listening(self._serve_stream, own=tcp_socket):
                yield self
        finally:
            transport.close()

    def answer(self, wire: bytes, *, over_udp: bool) -> bytes | None:
        query = dns.message.from_wire(wire)
        self.asked.add()
        if self.is_silent:
            return None
        response = dns.message.make_response(query)
        response.set_rcode(self.rcode)
        if self.rcode == dns.rcode.NOERROR:
            self._fill(query, response, over_udp=over_udp)
        return response.to_wire()

    def _fill(self, query: dns.message.Message, response: dns.message.Message, *, over_udp: bool) -> None:
        (question,) = query.question
        name = str(question.name).rstrip(".")
        kind = dns.rdatatype.to_text(question.rdtype)
        if (name, kind) in self.failing:
            response.set_rcode(dns.rcode.SERVFAIL)
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif over_udp and self.truncates:
            response.flags |= dns.flags.TC
        elif values := self.records.get((name, kind)):
            response.answer.append(dns.rrset.from_text(question.name, self.ttl_s, "IN", kind, *values))

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2), "big")
        answer = self.answer(await reader.readexactly(length), over_udp=False)
        if answer is not None:
            writer.write(len(answer).to_bytes(2, "big") + answer)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: FakeDns) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data, over_udp=True)
        if answer is not None:
            self._transport.sendto(answer, addr)


def _bound_pair() -> tuple[socket.socket, socket.socket]:
    """Sockets with one port number, for TCP and for UDP."""
    while True:
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        tcp.bind(("127.0.0.1", 0))
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            tcp.close()
            udp.close()
            continue
        for each in (tcp, udp):
            each.setblocking(False)
        return tcp, udp
