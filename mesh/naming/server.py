"""DNS server on UDP and TCP. It makes no queries of its own, and answers with no more than was asked for.

A datagram is answered to the address that it claims to come from, which may be forged. So the answers to one network in
a second are bounded, and no answer is much longer than its query; a client beyond the bound is told to come by TCP,
where an address cannot be forged. The time for all answers together is bounded too, since other work shares the event
loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Self

import dns.exception
import dns.flags
import dns.message
import dns.rcode
from msgspec import Struct

from mesh.clock import Clock
from mesh.graceful_close import deliver_accepted
from mesh.naming.answers import DnsAnswers, datagram_max
from mesh.naming.client_location import Address as ClientAddress
from mesh.naming.counters import DnsCounters
from mesh.naming.limits import ConnectionLimit, DatagramLimit, DnsLimits, TimeShare
from mesh.naming.sockets import DatagramSocket
from mesh.values import Address

_SECOND_NS = 1_000_000_000
_QUERY_BYTES_MAX = 4096
_ANSWER_BYTES_MAX = 65_535
_DATAGRAMS_AT_ONCE = 16
_BINDINGS_MAX = 16
_LENGTH = struct.Struct("!H")
_HEADER_BYTES = 12
_RESPONSE_BIT = 0x80
Inherited = tuple[socket.socket, socket.socket]
"""Listening TCP socket and UDP socket."""
_UNREADABLE = (dns.exception.DNSException, ValueError, IndexError, struct.error)
"""Exceptions of dnspython for bytes that are no message."""


class Common(Struct, frozen=True):
    """Parts that all DNS servers of one program share, whichever addresses they listen on."""

    answers: DnsAnswers
    clock: Clock
    limits: DnsLimits
    counters: DnsCounters
    allowance: DatagramLimit
    time: TimeShare
    places: ConnectionLimit
    on_limited: Callable[[ClientAddress], None]
    on_fault: Callable[[Exception], None]
    """Callback for an internal error while a query was answered."""


class DnsServer:
    """DNS server at one address."""

    def __init__(self, common: Common) -> None:
        self.address = Address("", 0)
        """Address that the server listens on, once it does."""
        self._common = common
        self._turn = 0
        self._datagrams: DatagramSocket | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._streams: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._shut: list[socket.socket] = []

    async def start(self, host: str, port: int, inherited: Inherited | None = None) -> Self:
        """Listen on UDP and TCP at the same port; port 0 lets the system choose one. `inherited` sockets are bound
        already. Raises OSError."""
        if inherited is not None:
            return await self._listen_on(inherited)
        for _ in range(_BINDINGS_MAX - 1):
            try:
                return await self._bind(host, port)
            except OSError as error:
                if port or error.errno != errno.EADDRINUSE:
                    raise  # only a port that the system chose for TCP may be taken for UDP
        return await self._bind(host, port)

    async def stop(self) -> None:
        self._stop_reading()
        if self._datagrams is not None:
            self._datagrams.close()
            self._datagrams = None
        for each in self._shut:
            each.close()
        self._shut = []
        if self._streams is not None:
            if isinstance(self._streams, asyncio.Server):  # uvloop's server loses no connections
                await deliver_accepted(self._streams)
            self._streams.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await self._streams.wait_closed()
            self._streams = None

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """Copies of the TCP and UDP sockets, which the caller closes."""
        assert self._streams is not None, "it listens"
        assert self._datagrams is not None, "it listens on both"
        return _copy(self._streams.sockets[0]), self._datagrams.socket.dup()

    async def shut(self) -> None:
        """Stop accepting: new queries wait in the system's queues, while open connections may go on."""
        self._shut = [self.sockets()[0]]
        self._stop_reading()
        assert self._streams is not None, "it listens"
        if isinstance(self._streams, asyncio.Server):
            await deliver_accepted(self._streams)
        self._streams.close()

    async def reopen(self) -> None:
        """Accept again after `shut`."""
        if self._shut and self._datagrams is not None:
            (streams,) = self._shut
            self._shut = []
            self._streams = await asyncio.start_server(self._serve, sock=streams, limit=_QUERY_BYTES_MAX)
            self._listen(self._datagrams)

    def _stop_reading(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        if self._datagrams is not None:
            asyncio.get_running_loop().remove_reader(self._datagrams.socket)

    async def _listen_on(self, inherited: Inherited) -> Self:
        streams, datagrams = inherited
        self._streams = await asyncio.start_server(self._serve, sock=streams, limit=_QUERY_BYTES_MAX)
        self.address = Address(*streams.getsockname()[:2])
        self._datagrams = DatagramSocket(self.address.host, self.address.port, datagrams)
        self._listen(self._datagrams)
        return self

    async def _bind(self, host: str, port: int) -> Self:
        self._streams = await asyncio.start_server(self._serve, host, port, limit=_QUERY_BYTES_MAX)
        own_host, own_port = self._streams.sockets[0].getsockname()[:2]
        try:
            self._datagrams = DatagramSocket(own_host, own_port)
        except OSError:
            await self.stop()
            raise
        self.address = Address(own_host, own_port)
        self._listen(self._datagrams)
        return self

    # Datagrams

    def _listen(self, own: DatagramSocket) -> None:
        self._rest = None
        asyncio.get_running_loop().add_reader(own.socket, self._read_datagrams, own)

    def _read_datagrams(self, own: DatagramSocket) -> None:
        """Answer a few datagrams at a time, so that other work on the event loop proceeds. Once the second's time is
        used up, stop reading for the rest of the second: the system holds some datagrams, and drops the others."""
        began_ns = self._common.clock.now_ns()
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                question = own.receive()
            except OSError:
                break
            answer = self._answer_datagram(question.data, _client(question.sender[0]))
            if answer is not None:
                with suppress(OSError):
                    own.answer(question, answer)
        now_ns = self._common.clock.now_ns()
        self._common.time.spend(now_ns, now_ns - began_ns)
        rest_ns = self._common.time.rest_ns(now_ns)
        if rest_ns:
            loop = asyncio.get_running_loop()
            loop.remove_reader(own.socket)
            self._rest = loop.call_later(rest_ns / _SECOND_NS, self._listen, own)

    def _answer_datagram(self, data: bytes, client: ClientAddress) -> bytes | None:
        """Answer to a datagram; None where it is no query, or where its network asks too often."""
        common = self._common
        if not common.allowance.take(client, common.clock.now_ns()):
            common.counters.limited.add()
            common.on_limited(client)
            self._turn += 1
            return _come_by_tcp(data) if self._turn % 2 else None
        return self._answer(data, client, is_datagram=True)

    # Both

    def _answer(self, data: bytes, client: ClientAddress, *, is_datagram: bool) -> bytes | None:
        """Answer in wire form; None for what is no query: answers to answers would never end."""
        if len(data) < _HEADER_BYTES or data[2] & _RESPONSE_BIT:
            self._common.counters.malformed.add()
            return None
        try:
            query = dns.message.from_wire(data, ignore_trailing=False)
        except _UNREADABLE:
            self._common.counters.malformed.add()
            return _header_only(data, dns.rcode.FORMERR)
        try:
            response = self._common.answers.answer(query, client)
            self._common.counters.answered(query, response)
            return _short(response, datagram_max(query) if is_datagram else _ANSWER_BYTES_MAX)
        except dns.exception.TooBig:
            self._common.counters.truncated.add()
            return _truncated(query).to_wire()
        except Exception as error:  # noqa: BLE001 - whatever a query causes, the next one is answered
            self._common.counters.failed(query)
            self._common.on_fault(error)
            return _header_only(data, dns.rcode.SERVFAIL)

    # Connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        places = self._common.places
        peer = writer.get_extra_info("peername")
        client = _client(peer[0]) if peer else None  # a client that has gone already has no address
        if client is None:
            self._let_go(writer)
            return
        self._writers.add(writer)
        longest_silent = places.take(writer, client)
        if isinstance(longest_silent, asyncio.StreamWriter):
            places.leave(longest_silent)
            self._let_go(longest_silent)
        try:
            await self._converse(reader, writer, client)
        except (OSError, EOFError, TimeoutError):
            pass  # the client left, was idle too long, or could not be sent to
        finally:
            places.leave(writer)
            self._writers.discard(writer)
            writer.close()

    def _let_go(self, writer: asyncio.StreamWriter) -> None:
        self._common.counters.turned_away.add()
        writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: ClientAddress
    ) -> None:
        for _ in range(self._common.limits.queries_per_connection):
            async with asyncio.timeout(self._common.limits.idle_s):
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > _QUERY_BYTES_MAX:
                    return
                data = await reader.readexactly(length)
                await self._take_turn()
                wire = self._answer_whole(data, client)
                if wire is None:
                    return
                self._common.places.asked(writer)
                writer.write(_LENGTH.pack(len(wire)) + wire)
                await writer.drain()

    async def _take_turn(self) -> None:
        """Wait for the next second where this second's time is used up, as datagrams do."""
        rest_ns = self._common.time.rest_ns(self._common.clock.now_ns())
        if rest_ns:
            await asyncio.sleep(rest_ns / _SECOND_NS)

    def _answer_whole(self, data: bytes, client: ClientAddress) -> bytes | None:
        began_ns = self._common.clock.now_ns()
        wire = self._answer(data, client, is_datagram=False)
        now_ns = self._common.clock.now_ns()
        self._common.time.spend(now_ns, now_ns - began_ns)
        return wire


def _copy(of: socket.socket) -> socket.socket:
    return socket.socket(fileno=os.dup(of.fileno()))


def _client(host: str) -> ClientAddress:
    return ip_address(host.partition("%")[0])


def _short(response: dns.message.Message, size_max: int) -> bytes:
    """Answer in wire form, without additional records where it would be too long. Raises TooBig."""
    try:
        return response.to_wire(max_size=size_max, want_shuffle=False)
    except dns.exception.TooBig:
        response.additional.clear()
        return response.to_wire(max_size=size_max, want_shuffle=False)


def _truncated(query: dns.message.Message) -> dns.message.Message:
    """Shortest answer, which tells the client to come by TCP."""
    response = dns.message.make_response(query, pad=0)
    response.flags = (response.flags | dns.flags.TC | dns.flags.AA) & ~dns.flags.RA
    return response


def _come_by_tcp(data: bytes) -> bytes | None:
    """Truncated answer to a query beyond the rate limit, of which only the question is read; None where it cannot be
    read."""
    if len(data) < _HEADER_BYTES or data[2] & _RESPONSE_BIT:
        return None
    try:
        return _truncated(dns.message.from_wire(data, question_only=True)).to_wire()
    except _UNREADABLE:
        return None


def _header_only(data: bytes, rcode: dns.rcode.Rcode) -> bytes:
    """Answer with the query's own header and no section."""
    flags = _RESPONSE_BIT | (data[2] & 0x79)
    return data[:2] + bytes((flags, int(rcode))) + bytes(_HEADER_BYTES - 4)
