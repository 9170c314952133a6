"""Carries packets between the hosts' devices, as `python -m loadgen.hosts.wire_process SITE=NUMBER ...`, until its
standard input ends.

The first line of its input is the table of links; each further line is an order, and each is answered by one line. It
stands in for the network between the hosts: their TCP is the kernel's own. It replaces `tc netem`, which many kernels
of virtual machines are built without.
"""

from __future__ import annotations

import os
import random
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

import msgspec

from loadgen.hosts.namespaces import open_device
from loadgen.hosts.shapes import Direction, LinkShape, Site
from loadgen.hosts.wire import PacketWire
from mesh.clock import Clock

_PACKET_BYTES_MAX = 65_535
_AT_ONCE_MAX = 64
"""Packets read from one device before the others, and what has arrived, have their turn."""
_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000
_WAIT_MAX_S = 1.0
_NICE = -15
"""Priority: a late wire would be measured as a longer one."""
LATE_MS = 5
"""Lateness of an arrival that is counted."""


class ShapedDirection(msgspec.Struct, frozen=True):
    source: Site
    destination: Site
    shape: LinkShape


class WireOrder(msgspec.Struct, frozen=True):
    """Order to the wire; an empty one only asks for the counts."""

    shapes: tuple[ShapedDirection, ...] = ()
    forget: tuple[Direction, ...] = ()
    """Links whose middleboxes forget their connections."""


class DirectionCounts(msgspec.Struct, frozen=True):
    source: Site
    destination: Site
    carried: int
    lost: int
    overtaking: int
    """Carried packets that arrive before one that was sent earlier."""
    delay_ms: float
    """Sum of the carried packets' time on their way."""


class WireCounts(msgspec.Struct, frozen=True):
    """Packets since the start."""

    directions: tuple[DirectionCounts, ...]
    late: int
    """Packets delivered more than `LATE_MS` after they were due, because the machine was busy."""
    late_max_ms: float


def main(arguments: Sequence[str], clock: Clock) -> None:
    sites = {site: int(number) for site, _, number in (each.partition("=") for each in arguments)}
    with suppress(PermissionError):
        os.nice(_NICE)
    devices = {site: open_device(site) for site in sites}
    first = msgspec.json.decode(sys.stdin.buffer.readline(), type=WireOrder)
    links = {(each.source, each.destination): each.shape for each in first.shapes}
    wire = PacketWire(sites, links, random.Random(1))
    carrier = PacketCarrier(wire, devices, clock, sys.stdin.fileno(), sys.stdout.buffer)
    carrier.say()
    carrier.run()


class PacketCarrier:
    """Reads packets from devices and writes them to others when they arrive, and follows orders."""

    def __init__(
        self, wire: PacketWire, devices: dict[Site, int], clock: Clock, orders: int, answers: BinaryIO
    ) -> None:
        """`devices` and `orders` are file descriptors."""
        self._wire = wire
        self._devices = devices
        self._clock = clock
        self._late = self._late_max_ns = 0
        self._orders = orders
        self._answers = answers
        self._unread = b""
        """Begin of a line that is not complete yet."""

    def run(self) -> None:
        """Carry packets until the orders end."""
        os.set_blocking(self._orders, False)
        watched = [*self._devices.values(), self._orders]
        while True:
            ready, _, _ = select.select(watched, [], [], self._wait_s())
            for each in ready:
                if each != self._orders:
                    self._read(each)
                elif not self._obey():
                    return
            self._deliver()

    def say(self) -> None:
        """Answer an order."""
        wire = self._wire
        ways = sorted(wire.carried.keys() | wire.lost.keys())
        counts = tuple(
            DirectionCounts(
                *way, wire.carried[way], wire.lost[way], wire.overtaking[way], wire.delay_ns[way] / _MILLISECOND_NS
            )
            for way in ways
        )
        told = WireCounts(counts, self._late, self._late_max_ns / _MILLISECOND_NS)
        self._answers.write(msgspec.json.encode(told) + b"\n")
        self._answers.flush()

    def _wait_s(self) -> float:
        next_ns = self._wire.next_ns()
        if next_ns is None:
            return _WAIT_MAX_S
        return max(0, next_ns - self._clock.now_ns()) / _SECOND_NS

    def _read(self, device: int) -> None:
        now_ns = self._clock.now_ns()
        for _ in range(_AT_ONCE_MAX):
            try:
                self._wire.send(os.read(device, _PACKET_BYTES_MAX), now_ns)
            except BlockingIOError:
                return

    def _deliver(self) -> None:
        now_ns = self._clock.now_ns()
        for due_ns, site, data in self._wire.arrived(now_ns):
            late_ns = now_ns - due_ns
            self._late += late_ns > LATE_MS * _MILLISECOND_NS
            self._late_max_ns = max(self._late_max_ns, late_ns)
            with suppress(OSError):  # a device whose queue is full loses packets, as devices do
                os.write(self._devices[site], data)

    def _obey(self) -> bool:
        """Follow the orders that have come. Returns False at their end."""
        try:
            read = os.read(self._orders, _PACKET_BYTES_MAX)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=WireOrder)
            self._wire.shape({(each.source, each.destination): each.shape for each in order.shapes})
            self._wire.forget_connections(order.forget)
            self.say()
        return bool(read)


if __name__ == "__main__":
    main(sys.argv[1:], Clock())
