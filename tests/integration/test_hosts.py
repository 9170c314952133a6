"""Hosts of their own and the process that carries their packets, by a program `ip` that notes what it was told, devices
that are sockets, and a process that answers orders: no test takes root's rights.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from loadgen.hosts import namespaces as module
from loadgen.hosts.namespaces import HostsUnavailable, add_address, namespaces
from loadgen.hosts.network import HostNetwork
from loadgen.hosts.shapes import LinkShape
from loadgen.hosts.wire import PacketWire
from loadgen.hosts.wire_process import DirectionCounts, PacketCarrier, ShapedDirection, WireCounts, WireOrder
from mesh.clock import Clock

_WAIT_S = 20.0


@pytest.fixture
def ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Program `ip` that writes down what it was told, instead of the system's; two namespaces are there at first."""
    program, told = tmp_path / "bin" / "ip", tmp_path / "told"
    program.parent.mkdir()
    told.touch()
    program.write_text(
        f"""#!/bin/sh
echo "$*" >> {told}
case "$*" in
"netns list") printf 'nightside-wan-old\\nanother-program\\nnightside-wan-held (id: 3)\\n' ;;
"netns del nightside-wan-old") echo "it is busy" >&2; [ ! -e {tmp_path}/busy ] ;;
esac
"""
    )
    program.chmod(0o755)
    device = tmp_path / "tun"
    device.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "_TUN", device)
    monkeypatch.setattr(module, "_FILES", tmp_path / "etc")
    monkeypatch.setattr(module, "_LOCK", tmp_path / "lock")
    return told


REMOVED = [
    "netns list",
    "netns pids nightside-wan-old",
    "netns del nightside-wan-old",
    "netns pids nightside-wan-held",
    "netns del nightside-wan-held",
]


def test_namespaces_of_an_earlier_run_are_removed_first_and_all_at_the_end_and_no_others(ip: Path) -> None:
    with namespaces({"us": 7}):
        told = ip.read_text().splitlines()
    assert told[:5] == REMOVED
    assert told[5] == "netns add nightside-wan-us"
    assert "-n nightside-wan-us addr add 10.77.7.1/24 dev wan0" in told
    assert ip.read_text().splitlines()[len(told) :] == REMOVED


@pytest.mark.usefixtures("ip")
def test_programs_on_a_site_ask_its_name_server_until_the_end(tmp_path: Path) -> None:
    file = tmp_path / "etc" / "nightside-wan-us" / "resolv.conf"
    with namespaces({"us": 7, "eu": 8}, {"us": "10.77.101.1"}):
        assert file.read_text().splitlines()[0] == "nameserver 10.77.101.1"
        assert not (tmp_path / "etc" / "nightside-wan-eu").exists()


def test_a_host_is_given_a_further_address(ip: Path) -> None:
    add_address("us", "10.77.7.2")
    assert ip.read_text().splitlines() == ["-n nightside-wan-us addr add 10.77.7.2/24 dev wan0"]


def test_a_namespace_that_cannot_be_removed_keeps_no_other_from_it(ip: Path, tmp_path: Path) -> None:
    def leave() -> None:
        with namespaces({"us": 7}):
            (tmp_path / "busy").touch()
            ip.write_text("")

    with pytest.raises(HostsUnavailable, match="ip netns del nightside-wan-old: it is busy"):
        leave()
    assert ip.read_text().splitlines() == REMOVED


def test_namespaces_are_removed_after_a_failure(ip: Path) -> None:
    with pytest.raises(ZeroDivisionError), namespaces({"us": 7}):
        raise ZeroDivisionError
    assert ip.read_text().splitlines()[-5:] == REMOVED


@pytest.mark.usefixtures("ip")
def test_a_second_run_at_a_time_is_refused_and_the_lock_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("kept")
    with namespaces({"us": 7}), pytest.raises(HostsUnavailable, match="another run has hosts"), namespaces({"eu": 8}):
        pass
    with namespaces({"us": 7}):
        assert (tmp_path / "lock").read_text() == "kept"


def test_the_lock_is_in_no_folder_that_others_write_in() -> None:
    assert module._LOCK.parent == Path("/run")


# Orders to the process that carries packets

ANSWER = WireCounts((DirectionCounts("us", "eu", 2, 1, 0, 150.0),), 0, 0.5)
ECHO = f"import sys\nfor line in sys.stdin: print({msgspec.json.encode(ANSWER).decode()!r}, flush=True)"
REPEAT = "import sys\nfor line in sys.stdin: print(line, end='', file=sys.stderr, flush=True); print('{}', flush=True)"


async def running(program: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=1 << 20
    )


async def ended(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


async def test_orders_are_answered_with_counts() -> None:
    wire = await running(ECHO)
    network = HostNetwork({"us": 1, "eu": 2}, wire)
    assert await network.counts() == ANSWER
    assert await network.shape({("us", "eu"): LinkShape(is_cut=True)}) == ANSWER
    await ended(wire)


async def test_an_order_names_the_links_and_the_connections_to_forget() -> None:
    wire = await running(REPEAT)
    network = HostNetwork({"us": 1, "eu": 2}, wire)
    for order in (network.shape({("us", "eu"): LinkShape(is_cut=True)}), network.forget_connections([("eu", "us")])):
        with pytest.raises(msgspec.ValidationError):
            await order
    await ended(wire)
    assert wire.stderr is not None
    first, second = (msgspec.json.decode(line, type=WireOrder) for line in (await wire.stderr.read()).splitlines())
    assert [(each.source, each.destination, each.shape.is_cut) for each in first.shapes] == [("us", "eu", True)]
    assert second == WireOrder(forget=(("eu", "us"),))


async def test_the_end_of_the_process_is_told_with_its_status() -> None:
    wire = await running("import sys; sys.stdin.readline(); sys.exit(3)")
    with pytest.raises(HostsUnavailable, match="ended with status 3"):
        await HostNetwork({"us": 1}, wire).counts()


def test_each_site_has_an_address_that_its_operators_reach() -> None:
    async def addresses() -> tuple[str, str, str]:
        wire = await running("")
        network = HostNetwork({"us": 7}, wire)
        await wire.wait()
        return network.address("us"), network.admin_address("us"), network.network("us")

    assert asyncio.run(addresses()) == ("10.77.7.1", "127.77.7.1", "10.77.7.0/24")


# The process that carries packets

WAYS = (("us", "eu"), ("eu", "us"))


def packet(source: int, destination: int, *, size: int = 60) -> bytes:
    """UDP packet between the sites' hosts."""
    header = bytes((0x45, 0, 0, size, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, source, 1, 10, 77, destination, 1))
    return header.ljust(size, b"x")


@dataclass(frozen=True)
class Carried:
    """Far ends of the devices and of the orders of a carrier that runs."""

    hosts: dict[str, socket.socket]
    orders: BinaryIO
    answers: BinaryIO

    def order(self, order: WireOrder) -> WireCounts:
        """Send an order in two parts, and return its answer."""
        line = msgspec.json.encode(order) + b"\n"
        for part in (line[:7], line[7:]):
            self.orders.write(part)
            self.orders.flush()
        return msgspec.json.decode(self.answers.readline(), type=WireCounts)


@asynccontextmanager
async def carrying() -> AsyncIterator[Carried]:
    """Run a carrier whose devices are sockets. It ends once its orders do."""
    with ExitStack() as stack:
        devices, hosts = {}, {}
        for site in ("us", "eu"):
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            devices[site], hosts[site] = stack.enter_context(near).fileno(), stack.enter_context(far)
            near.setblocking(False)
            far.settimeout(_WAIT_S)
        (orders, ordered), (answers, answered) = (_pipe(stack), _pipe(stack))
        wire = PacketWire({"us": 1, "eu": 2}, {way: LinkShape(delay_ms=1.0) for way in WAYS}, random.Random(1))
        carrier = PacketCarrier(wire, devices, Clock(), orders.fileno(), answered)
        running = asyncio.get_running_loop().run_in_executor(None, carrier.run)
        try:
            yield Carried(hosts, ordered, answers)
        finally:
            ordered.close()
            await running


def _pipe(stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    there, here = os.pipe()
    return stack.enter_context(os.fdopen(there, "rb")), stack.enter_context(os.fdopen(here, "wb"))


async def test_packets_are_carried_between_devices_until_the_orders_end() -> None:
    async with carrying() as carried:
        carried.hosts["us"].send(packet(1, 2))
        assert carried.hosts["eu"].recv(100) == packet(1, 2)
        carried.hosts["us"].send(b"no packet of IP")
        carried.hosts["eu"].send(packet(2, 1))
        assert carried.hosts["us"].recv(100) == packet(2, 1)
        counts = carried.order(WireOrder())
    assert [(each.source, each.carried, each.lost) for each in counts.directions] == [("eu", 1, 0), ("us", 1, 0)]
    assert all(each.delay_ms == 1.0 for each in counts.directions)


async def test_an_order_cuts_one_direction_and_the_loss_is_counted() -> None:
    async with carrying() as carried:
        carried.order(WireOrder(shapes=(ShapedDirection("us", "eu", LinkShape(is_cut=True)),)))
        carried.hosts["us"].send(packet(1, 2))
        carried.hosts["eu"].send(packet(2, 1))
        assert carried.hosts["us"].recv(100) == packet(2, 1)
        while not (lost := [each for each in carried.order(WireOrder()).directions if each.lost]):
            pass
    assert [(each.source, each.carried, each.lost) for each in lost] == [("us", 0, 1)]
