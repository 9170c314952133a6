"""A DNS server on UDP and TCP that answers from a zone. It asks nobody, and answers nobody more than it was asked for.

A datagram is answered to whoever its sender claims to be, so what one network is sent per second is bounded, and no
answer is much longer than its question; whoever is over the bound is told to come by TCP, which nobody can do in
another's name.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

import dns.exception
import dns.flags
import dns.message
import dns.rcode

from gateway.ground.accepting import hear_of_all_accepted
from gateway.ground.clock import Clock
from gateway.ground.naming.answers import Zone, datagram_max
from gateway.ground.naming.geography import Address, network_of

_SECOND_NS = 1_000_000_000
_QUERY_BYTES_MAX = 4096
_ANSWER_BYTES_MAX = 65_535
_DATAGRAMS_AT_ONCE = 64
_LENGTH = struct.Struct("!H")
_NETWORK_BITS = {4: 24, 6: 56}
_HEADER_BYTES = 12
_RESPONSE_BIT = 0x80


@dataclass(frozen=True, slots=True)
class DnsLimits:
    answers_per_s: int = 50
    """To one network (/24 or /56) by datagram; of those above it every second one is told to come by TCP."""
    networks_max: int = 65_536
    """So many are remembered; the one that asked longest ago is forgotten."""
    connections_max: int = 256
    idle_s: float = 10.0
    """A TCP client that sends nothing for so long is let go."""
    queries_per_connection: int = 1_000


class Allowance:
    """How many datagrams a network may still be sent now."""

    def __init__(self, limits: DnsLimits) -> None:
        self._limits = limits
        self._left: OrderedDict[object, tuple[float, int]] = OrderedDict()
        """By network, what is left and when that was."""

    def __len__(self) -> int:
        return len(self._left)

    def take(self, client: Address, now_ns: int) -> bool:
        one = network_of(client)
        network = one.supernet(new_prefix=_NETWORK_BITS[one.version])
        rate = self._limits.answers_per_s
        left, then_ns = self._left.pop(network, (float(rate), now_ns))
        left = min(float(rate), left + (now_ns - then_ns) / _SECOND_NS * rate)
        is_allowed = left >= 1
        self._left[network] = (left - 1 if is_allowed else left, now_ns)
        if len(self._left) > self._limits.networks_max:
            self._left.popitem(last=False)
        return is_allowed


class DnsServer:
    """One zone's server at one address. Counts what it did, for whoever measures."""

    def __init__(self, zone: Zone, clock: Clock, limits: DnsLimits | None = None) -> None:
        self.answered = 0
        self.limited = 0
        self.malformed = 0
        self.address: tuple[str, int] = ("", 0)
        """Where it listens, once it does."""
        self._zone = zone
        self._clock = clock
        self._limits = limits or DnsLimits()
        self._allowance = Allowance(self._limits)
        self._turn = 0
        self._connections = 0
        self._datagrams: socket.socket | None = None
        self._streams: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, port: int) -> Self:
        """Listens on both, at the same port. Raises OSError."""
        self._streams = await asyncio.start_server(self._serve, host, port)
        self.address = self._streams.sockets[0].getsockname()[:2]
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        self._datagrams = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._datagrams.setblocking(False)
            self._datagrams.bind(self.address)
        except OSError:
            await self.stop()
            raise
        asyncio.get_running_loop().add_reader(self._datagrams, self._read_datagrams, self._datagrams)
        return self

    async def stop(self) -> None:
        if self._datagrams is not None:
            asyncio.get_running_loop().remove_reader(self._datagrams)
            self._datagrams.close()
        if self._streams is not None:
            if isinstance(self._streams, asyncio.Server):  # uvloop's loses nothing
                await hear_of_all_accepted(self._streams)
            self._streams.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await self._streams.wait_closed()

    # Datagrams

    def _read_datagrams(self, own: socket.socket) -> None:
        """A few at a time, for the sake of everybody else on the loop. Where the way back is full, or a client's host
        has refused an answer, nobody waits for it: whoever asked asks again."""
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                data, sender = own.recvfrom(_QUERY_BYTES_MAX)
            except OSError:
                return
            answer = self._answer_datagram(data, ip_address(sender[0].partition("%")[0]))
            if answer is not None:
                with suppress(OSError):
                    own.sendto(answer, sender)

    def _answer_datagram(self, data: bytes, client: Address) -> bytes | None:
        """None: nothing is said, as to whoever is not asking or asks too often."""
        if not self._allowance.take(client, self._clock.now_ns()):
            self.limited += 1
            self._turn += 1
            return _come_by_tcp(data) if self._turn % 2 else None
        query = self._parse(data)
        if query is None:
            return None
        if isinstance(query, bytes):
            return query
        self.answered += 1
        try:
            return self._zone.answer(query, client).to_wire(max_size=datagram_max(query))
        except dns.exception.TooBig:
            return _truncated(query).to_wire()

    def _whole(self, query: dns.message.Message, client: Address) -> bytes:
        """As long as a connection takes it."""
        return self._zone.answer(query, client).to_wire(max_size=_ANSWER_BYTES_MAX)

    def _parse(self, data: bytes) -> dns.message.Message | bytes | None:
        """A query; or what is answered to one that cannot be read; or None for what is none at all."""
        if len(data) < _HEADER_BYTES or data[2] & _RESPONSE_BIT:
            self.malformed += 1
            return None  # answering an answer would never end
        try:
            return dns.message.from_wire(data, ignore_trailing=False)
        except (dns.exception.DNSException, ValueError, IndexError, struct.error):
            self.malformed += 1
            return _malformed(data)

    # Connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= self._limits.connections_max:
            writer.transport.abort()
            return
        self._connections += 1
        self._writers.add(writer)
        try:
            client = ip_address(writer.get_extra_info("peername")[0].partition("%")[0])
            await self._converse(reader, writer, client)
        except (OSError, EOFError, TimeoutError, dns.exception.TooBig):
            pass  # whoever leaves, says nothing, or could not be told, is let go
        finally:
            self._connections -= 1
            self._writers.discard(writer)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: Address) -> None:
        for _ in range(self._limits.queries_per_connection):
            async with asyncio.timeout(self._limits.idle_s):
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > _QUERY_BYTES_MAX:
                    return
                data = await reader.readexactly(length)
                query = self._parse(data)
                if query is None:
                    return
                wire = query if isinstance(query, bytes) else self._whole(query, client)
                self.answered += 1
                writer.write(_LENGTH.pack(len(wire)) + wire)
                await writer.drain()


def _truncated(query: dns.message.Message) -> dns.message.Message:
    """As short as an answer gets: `come by TCP`."""
    response = dns.message.make_response(query)
    response.flags = (response.flags | dns.flags.TC | dns.flags.AA) & ~dns.flags.RA
    return response


def _come_by_tcp(data: bytes) -> bytes | None:
    """To one query too many, read no further than its question; None where there is none to be read."""
    try:
        query = dns.message.from_wire(data, question_only=True)
        is_query = not query.flags & dns.flags.QR
    except (dns.exception.DNSException, ValueError, IndexError, struct.error):
        return None
    return _truncated(query).to_wire() if is_query else None


def _malformed(data: bytes) -> bytes:
    """Its own header, with no section and FORMERR."""
    flags = _RESPONSE_BIT | (data[2] & 0x79)
    return data[:2] + bytes((flags, int(dns.rcode.FORMERR))) + bytes(_HEADER_BYTES - 4)
