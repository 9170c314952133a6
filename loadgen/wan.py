"""Emulates the network between regions on one machine: TCP proxies that delay each direction, and can be cut and
healed.

It stands in for the network only. It must never look into the bytes it carries, reorder them or lose them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Self, cast
from weakref import WeakSet

from gateway.core.vocabulary import RegionName
from loadgen.round_trips import RoundTripTable

_LOOPBACK = "127.0.0.1"


class _Direction:
    """One direction of the path between two regions; all connections across it share its delay and its state."""

    def __init__(self, delay_s: float, in_flight_bytes_max: int) -> None:
        self.delay_s = delay_s
        self.in_flight_bytes_max = in_flight_bytes_max
        self.open = asyncio.Event()
        self.open.set()
        self.pipes: set[_Pipe] = set()

    @property
    def is_open(self) -> bool:
        return self.open.is_set()

    def cut(self) -> None:
        self.open.clear()

    def heal(self) -> None:
        self.open.set()
        for pipe in tuple(self.pipes):
            pipe.deliver()


class _Pipe:
    """One direction of one connection: bytes read at one end are written at the other, later and in order."""

    def __init__(self, direction: _Direction, source: _End, sink: _End) -> None:
        self._loop = asyncio.get_running_loop()
        self._direction = direction
        self._source = source
        self._sink = sink
        self._parcels: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        direction.pipes.add(self)

    def put(self, data: bytes) -> None:
        """Queue bytes for delivery; empty bytes stand for the end of the connection."""
        if self not in self._direction.pipes:
            return
        self._parcels.append((self._loop.time() + self._direction.delay_s, data))
        self._bytes += len(data)
        if self._bytes > self._direction.in_flight_bytes_max:
            self._source.pause_reading()
        if self._timer is None:
            self._arm()

    def deliver(self) -> None:
        """Write the bytes that are due, unless the path is cut or the receiver is slow."""
        self._disarm()
        now_s = self._loop.time()
        while self._may_write() and self._parcels and self._parcels[0][0] <= now_s:
            data = self._parcels.popleft()[1]
            self._bytes -= len(data)
            self._sink.write_or_close(data)
        if self._bytes <= self._direction.in_flight_bytes_max // 2:
            self._source.resume_reading()
        self._arm()

    def drop(self) -> None:
        """Discard all queued bytes, since the receiver is gone."""
        self._disarm()
        self._parcels.clear()
        self._direction.pipes.discard(self)

    def _may_write(self) -> bool:
        return self._direction.is_open and not self._sink.is_full

    def _arm(self) -> None:
        if self._parcels and self._may_write():
            self._timer = self._loop.call_at(self._parcels[0][0], self.deliver)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _End(asyncio.Protocol):
    """One socket of a proxied connection. It reads nothing until its pipes are connected."""

    def __init__(self) -> None:
        self.is_full = False
        self._lost = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._outgoing: _Pipe | None = None
        self._incoming: _Pipe | None = None
        self._early: list[bytes] = []
        """Bytes read before the pipes were connected: early releases of Python 3.11 read although reading was paused at
        once."""

    def lay(self, *, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        for data in self._early:
            outgoing.put(data)
        self._early.clear()
        self.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._outgoing is None:
            self._early.append(data)
        else:
            self._outgoing.put(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if self._incoming is not None:
            self._incoming.drop()
        if self._outgoing is not None:
            self._outgoing.put(b"")

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._incoming is not None:
            self._incoming.deliver()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def write_or_close(self, data: bytes) -> None:
        if self._transport is None:
            return
        if data:
            self._transport.write(data)
        else:
            self._transport.close()

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, discarding unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    async def until_lost(self) -> None:
        if self._transport is not None:
            await self._lost.wait()


class _Caller(_End):
    """Socket of the connecting client."""

    def __init__(self, wan: Wan, route: _Route) -> None:
        super().__init__()
        self._wan = wan
        self._route = route

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wan.dial(self, self._route)


@dataclass(frozen=True, slots=True)
class _Route:
    """Route from a caller's region to one port in another region."""

    there: _Direction
    back: _Direction
    port: int


class Wan:
    """Network between regions. A cut holds bytes back instead of losing them, as TCP does until it gives up.

    A sender with more than `in_flight_bytes_max` bytes in flight on one connection is not read from until some arrive.
    """

    def __init__(self, table: RoundTripTable, *, in_flight_bytes_max: int = 16 * 2**20) -> None:
        self._table = table
        self._in_flight_bytes_max = in_flight_bytes_max
        self._directions: dict[tuple[RegionName, RegionName], _Direction] = {}
        self._servers: list[asyncio.Server] = []
        self._ends: WeakSet[_End] = WeakSet()
        self._tasks = asyncio.TaskGroup()
        self._dials: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take no more connections and drop all existing ones."""
        self._is_closed = True
        for listening in (each for server in self._servers for each in server.sockets):
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)  # asyncio of Python 3.11 loses a connection that is being accepted during the close
        for server in self._servers:
            server.close()
        for task in self._dials:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)
        for end in tuple(self._ends):
            end.abort()
            await end.until_lost()

    async def route(self, caller: RegionName, callee: RegionName, port: int) -> int:
        """Open a loopback port through which the caller's region reaches `port` in the callee's region; returns its
        number."""
        route = _Route(self._direction(caller, callee), self._direction(callee, caller), port)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Caller(self, route), _LOOPBACK, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def cut(self, one: RegionName, other: RegionName) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, source: RegionName, destination: RegionName) -> None:
        self._direction(source, destination).cut()

    def heal(self, one: RegionName, other: RegionName) -> None:
        self._direction(one, other).heal()
        self._direction(other, one).heal()

    def dial(self, caller: _End, route: _Route) -> None:
        """Connect the route for a caller that has just connected."""
        self._ends.add(caller)
        if self._is_closed:
            caller.abort()
            return
        task = self._tasks.create_task(self._connect(caller, route))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def _direction(self, source: RegionName, destination: RegionName) -> _Direction:
        """State of one direction. Raises KeyError when the table has no such pair."""
        key = (source, destination)
        if key not in self._directions:
            delay_s = self._table.round_trip_s(source, destination) / 2
            self._directions[key] = _Direction(delay_s, self._in_flight_bytes_max)
        return self._directions[key]

    async def _connect(self, caller: _End, route: _Route) -> None:
        """Connect to the callee after one round trip: the caller's system connects to the proxy at once, so its first
        bytes pay for the handshake."""
        callee = _End()
        self._ends.add(callee)
        await asyncio.sleep(route.there.delay_s + route.back.delay_s)
        await route.there.open.wait()
        await route.back.open.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: callee, _LOOPBACK, route.port)
        except OSError:
            caller.abort()
        else:
            _join(caller, callee, route)


def _join(caller: _End, callee: _End, route: _Route) -> None:
    if caller.is_lost:
        callee.abort()
        return
    there = _Pipe(route.there, source=caller, sink=callee)
    back = _Pipe(route.back, source=callee, sink=caller)
    caller.lay(outgoing=there, incoming=back)
    callee.lay(outgoing=back, incoming=there)
