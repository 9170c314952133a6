"""Runs hosts on one machine and the emulated network between them, whose links can be shaped while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec

from loadgen.demo.processes import OUR_MODULES
from loadgen.hosts.namespaces import (
    HostsUnavailable,
    add_address,
    address_of,
    command_on,
    namespaces,
    network_of_site,
    signal_all_on,
    socket_on,
)
from loadgen.hosts.shapes import Direction, LinkTable, Site
from loadgen.hosts.wire_process import ShapedDirection, WireCounts, WireOrder

_ANSWER_S = 10.0
_STOP_S = 5.0
_ADMIN_PREFIX = "127.77."
_LINE_BYTES_MAX = 1 << 20


class HostNetwork:
    """Running hosts, and the network between them."""

    def __init__(self, sites: Mapping[Site, int], wire: Process) -> None:
        self._sites = sites
        self._by_number = {number: site for site, number in sites.items()}
        self._wire = wire
        self._one_at_a_time = asyncio.Lock()

    def address(self, site: Site) -> str:
        return address_of(self._sites[site])

    def further_address(self, site: Site) -> str:
        """Give the site's host a second address, and return it. Raises HostsUnavailable."""
        address = address_of(self._sites[site], 2)
        add_address(site, address)
        return address

    def network(self, site: Site) -> str:
        return network_of_site(self._sites[site])

    def admin_address(self, site: Site) -> str:
        """Loopback address that no other host has, so that `session` knows the host by it."""
        return f"{_ADMIN_PREFIX}{self._sites[site]}.1"

    def command(self, site: Site) -> tuple[str, ...]:
        """Begin of a command line that runs a program on the site's host."""
        return command_on(site)

    def session(self) -> aiohttp.ClientSession:
        """HTTP session whose connections are made on the host that an address belongs to: an operator's shell on each
        host, which needs no network between them."""
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=self._socket))

    async def shape(self, links: LinkTable) -> WireCounts:
        """Give links other shapes."""
        return await self._order(WireOrder(shapes=_as_order(links)))

    async def forget_connections(self, ways: Iterable[Direction]) -> WireCounts:
        """Have the middleboxes of these links forget their connections."""
        return await self._order(WireOrder(forget=tuple(ways)))

    async def counts(self) -> WireCounts:
        return await self._order(WireOrder())

    def freeze(self, site: Site) -> int:
        """Stop every process on the host, as a hypervisor stops a machine; returns how many there are. The host's
        kernel still answers, so that its links are to be cut as well."""
        return signal_all_on(site, signal.SIGSTOP)

    def wake(self, site: Site) -> int:
        return signal_all_on(site, signal.SIGCONT)

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, where = address
        return socket_on(self._by_number[int(str(where[0]).split(".")[2])], family, kind, protocol)

    async def _order(self, order: WireOrder) -> WireCounts:
        async with self._one_at_a_time:
            return await _ask(self._wire, order)


def _as_order(links: LinkTable) -> tuple[ShapedDirection, ...]:
    return tuple(ShapedDirection(*way, shape) for way, shape in links.items())


async def _ask(wire: Process, order: WireOrder) -> WireCounts:
    """Send an order and return its answer. Raises HostsUnavailable if none comes."""
    assert wire.stdin is not None, "it was asked for"
    assert wire.stdout is not None, "it was asked for"
    try:
        async with asyncio.timeout(_ANSWER_S):
            wire.stdin.write(msgspec.json.encode(order) + b"\n")
            await wire.stdin.drain()
            answer = await wire.stdout.readline()
    except (TimeoutError, OSError) as error:
        raise HostsUnavailable("the process that carries the packets does not answer") from error
    if not answer:
        raise HostsUnavailable(f"the process that carries the packets ended with status {await wire.wait()}")
    return msgspec.json.decode(answer, type=WireCounts)


@asynccontextmanager
async def host_network(
    sites: Mapping[Site, int], links: LinkTable, resolved_at: Mapping[Site, Site] | None = None
) -> AsyncIterator[HostNetwork]:
    """Run the hosts and their network; at the end, all processes on the hosts are killed. `resolved_at`: host of each
    site's name server. Raises HostsUnavailable."""
    name_servers = {site: address_of(sites[at]) for site, at in (resolved_at or {}).items()}
    with namespaces(sites, name_servers):
        numbered = [f"{site}={number}" for site, number in sites.items()]
        wire = await asyncio.create_subprocess_exec(
            *OUR_MODULES, "loadgen.demo.bound_to_parent", str(os.getpid()), *OUR_MODULES, "loadgen.hosts.wire_process",
            *numbered, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=_LINE_BYTES_MAX,
        )  # fmt: skip
        try:
            await _ask(wire, WireOrder(shapes=_as_order(links)))
            yield HostNetwork(sites, wire)
        finally:
            await _end(wire)


async def _end(wire: Process) -> None:
    if wire.returncode is None:
        wire.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await wire.wait()
    if wire.returncode is None:
        wire.kill()
        await wire.wait()
