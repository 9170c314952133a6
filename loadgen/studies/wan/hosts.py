"""Runs the hosts that a fault strikes: their network, name servers, clocks, service managers and database. It begins
and ends what a fault does to them, and judges nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rdatatype
import yaml

from gateway.core.vocabulary import RegionName
from loadgen.demo.layout import RegionHost
from loadgen.demo.mesh import Hosts, Mesh
from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import ZONE
from loadgen.hosts.namespaces import on_host, processes_on
from loadgen.hosts.network import HostNetwork, host_network
from loadgen.hosts.services import RegionNames, clock_environment, running_database
from loadgen.hosts.shapes import LinkTable, Site
from loadgen.hosts.wire import NETWORK
from loadgen.hosts.wire_process import WireCounts
from loadgen.studies.wan.faults import DATABASE, REGIONS, STANDBY, NamesFault, WanFault, clients_of, sites

HOSTS_ZONE = "hosts.test"
OWN_FOLDER = Path("/run/nightside-wan")
"""Folder whose contents each host has for itself."""
_UNUSED = f"{NETWORK[0]}.{NETWORK[1]}.250.1"
DRAIN_S = 6.0
"""Longest drain of a gateway: longer than answers take, and shorter than a process has to end."""
_GRACE_S = 8.0
_TOLD_S = 10.0
_PATIENCE_S = 0.3
_ALL = f"{NETWORK[0]}.{NETWORK[1]}.0.0/16"


def name_of(region: RegionName) -> str:
    """DNS name of the region's host."""
    return f"{region}.{HOSTS_ZONE}"


def lies_in(region: RegionName, addresses: Mapping[RegionName, str]) -> dict[str, str]:
    """Lies of a region's name server: other hosts in place of each other, and an unused address for the mesh."""
    one, other = (each for each in REGIONS if each != region)
    return {ZONE: _UNUSED, name_of(one): addresses[other], name_of(other): addresses[one]}


@dataclass(slots=True)
class WanHosts:
    """Running hosts of all regions."""

    network: HostNetwork
    sound: LinkTable
    names: Mapping[RegionName, RegionNames]
    hosts: Hosts
    clock: Path

    def name_server(self, region: RegionName) -> tuple[str, int]:
        return self.names[region].address, 53

    def lead_to(self, mesh: Mesh) -> None:
        """Have the regions' name servers ask the mesh's own for its name."""
        assert mesh.name is not None, "there are controllers"
        for each in self.names.values():
            each.change(servers=mesh.name.servers)

    async def strike(self, fault: WanFault, mesh: Mesh, file_of: Callable[[RegionName], Path]) -> WireCounts:
        """Begin the fault; returns the counts before its links have carried a packet. Raises DemoFailure."""
        region = fault.struck
        if fault.frozen is not None and not self.network.freeze(fault.frozen):
            raise DemoFailure(f"there was no process on the host of {fault.frozen} that could be stopped")
        if fault.names is NamesFault.SILENT:
            self.names[region].fall_silent()
            await self._until_told(region, ZONE, None)
        if fault.names is NamesFault.LYING:
            lies = lies_in(region, {each: self.network.address(str(each)) for each in REGIONS})
            self.names[region].change(lies=lies)
            for name, address in lies.items():
                await self._until_told(region, name, address)
        counts = await self.network.shape(fault.shaped(self.sound))
        if fault.forgets:
            await self.network.forget_connections(fault.forgets)
        if fault.clock_s:
            self.clock.write_text(f"{fault.clock_s:+.0f}\n")
        if fault.kills:
            _kill_gateway(region)
        if fault.moves:
            await self._move(region, mesh, file_of(region))
        return counts

    async def heal(self, fault: WanFault) -> WireCounts:
        """End the fault; returns the counts before a sound link has carried a packet."""
        if fault.frozen is not None:
            self.network.wake(fault.frozen)
        if fault.clock_s:
            self.clock.write_text("+0\n")
        if fault.names is NamesFault.SILENT:
            self.names[fault.struck].speak()
        if fault.names is NamesFault.LYING:
            self.names[fault.struck].change(lies={})
        return await self.network.shape(self.sound)

    async def _until_told(self, region: RegionName, name: str, address: str | None) -> None:
        """Wait until the region's name server tells that address, or does not answer where it is None. Raises
        DemoFailure on time-out."""
        server = self.names[region].address
        try:
            async with asyncio.timeout(_TOLD_S):
                while await asyncio.to_thread(_told, clients_of(region), server, name) != address:
                    pass
        except TimeoutError:
            raise DemoFailure(f"the name server of {region} does not tell {address} for {name}") from None

    async def _move(self, region: RegionName, mesh: Mesh, file: Path) -> None:
        member = mesh.first_of(region)
        old, new = self.network.address(str(region)), self.network.further_address(str(region))
        await member.child.stop(_GRACE_S)
        _write_moved(file, old, new)
        for each in self.names.values():
            each.change(hosts={name_of(region): new})
        await member.start()


def _write_moved(file: Path, old: str, new: str) -> None:
    """Change the addresses at which the gateway of a configuration file listens; those of its engines stay."""
    document = yaml.safe_load(file.read_text())
    for where, key in (("listen", "http"), ("listen", "peers"), ("dns", "listen"), ("control", "client_addresses")):
        document[where][key] = _moved(document[where][key], old, new)
    file.write_text(yaml.safe_dump(document, sort_keys=False))


def _told(site: Site, server: str, name: str) -> str | None:
    """Address that a name server tells for a name, asked on the site's host; None: it does not answer in time."""
    query = dns.message.make_query(name, "A")
    with on_host(site):
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.setblocking(False)  # a time limit of dnspython needs that
    with asking:
        try:
            answer = dns.query.udp(query, server, timeout=_PATIENCE_S, sock=asking)
        except (dns.exception.DNSException, OSError):
            return None
    return next((item.to_text() for each in answer.answer for item in each if each.rdtype == dns.rdatatype.A), "")


def _moved(value: object, old: str, new: str) -> object:
    if isinstance(value, list):
        return [_moved(each, old, new) for each in value]
    return str(value).replace(old, new)


def _kill_gateway(region: RegionName) -> None:
    """Kill the gateway's process and not its service manager. Raises DemoFailure."""
    killed = 0
    for pid in processes_on(str(region)):
        with suppress(OSError):  # a process may have ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"loadgen.hosts.supervised" not in command and b"gateway" in command:
                os.kill(pid, signal.SIGKILL)
                killed += 1
    if not killed:
        raise DemoFailure(f"there was no gateway on the host of {region} that could be killed")


@asynccontextmanager
async def running_hosts(
    fault: WanFault, sound: LinkTable, folder: Path, tasks: asyncio.TaskGroup
) -> AsyncIterator[WanHosts]:
    """Run the hosts for a fault; their files are in `folder`. Raises DemoFailure and HostsUnavailable."""
    numbered, clock = sites(), folder / "clock"
    clock.write_text("+0\n")
    asked = {site: clients_of(region) for region in REGIONS for site in (str(region), clients_of(region))}
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(host_network(numbered, sound, asked))
        names = {}
        for region in REGIONS:
            site = clients_of(region)
            addresses = {name_of(each): network.address(str(each)) for each in REGIONS}
            each = RegionNames(folder / f"names-{region}", network.address(site), addresses, HOSTS_ZONE, ZONE)
            await stack.enter_async_context(each.running(network.command(site), folder / f"names-{region}.log", tasks))
            names[region] = each
        store = await stack.enter_async_context(
            running_database(
                network.command(DATABASE), network.address(DATABASE), _ALL, folder / "postgresql.log", tasks
            )
        )
        stack.callback(network.wake, DATABASE)
        struck_clock = clock if fault.clock_s else None
        regions = {region: _host(network, region, folder, struck_clock) for region in REGIONS}
        hosts = Hosts(regions, network.session, store, STANDBY)
        yield WanHosts(network, sound, names, hosts, clock)


def _host(network: HostNetwork, region: RegionName, folder: Path, clock: Path | None) -> RegionHost:
    """Host whose programs see a folder of their own, and are started again after they end by themselves. `clock`: file
    of the clock of the last region's host; None: all hosts have the machine's clock."""
    site = str(region)
    own = folder / "hosts" / str(region)
    own.mkdir(parents=True)
    OWN_FOLDER.mkdir(exist_ok=True)
    see_own = (str(shutil.which("sh")), "-c", f'mount --bind "$0" {OWN_FOLDER} && exec "$@"', str(own))
    keep_time: Sequence[str] = clock_environment(clock) if clock is not None and region == REGIONS[-1] else ()
    command = (*network.command(site), *see_own, *keep_time, sys.executable, "-m", "loadgen.hosts.supervised")
    return RegionHost(
        network.address(site), network.admin_address(site), network.network(clients_of(region)), command,
        name_of(region), OWN_FOLDER / "state",
    )  # fmt: skip
