"""Looks a DNS name up: addresses, ports, and how long they hold. It remembers nothing."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TypeVar

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
import dns.rdtypes.IN.SRV
import dns.resolver
from msgspec import Struct

from gateway.config.targets import DnsRecord, DnsReplicasConfig
from gateway.discovery.templates import ReplicaLocation, is_one_servers
from mesh.task_group import TaskGroup
from mesh.values import Address

_SECOND_NS = 1_000_000_000
_TARGETS_MAX = 256
"""Most names that the SRV records of one answer may refer to."""


class LookupFailed(Exception):
    """The lookup gave no usable answer; the message says why."""


class LookupAnswer(Struct, frozen=True):
    locations: tuple[ReplicaLocation, ...]
    """Locations of the name; empty where it resolves to none."""
    ttl_ns: int


class NameLookup:
    """Lookup of one name, with the machine's nameservers or with given ones."""

    def __init__(self, config: DnsReplicasConfig, timeout_ns: int) -> None:
        """Raise LookupFailed where the machine has no nameserver configured."""
        self._config = config
        self._resolver = _resolver(config.nameservers, timeout_ns / _SECOND_NS)

    async def ask(self) -> LookupAnswer:
        """Look the name up. Raises LookupFailed.

        The resolver waits with `asyncio.wait_for`, which may swallow a cancellation. In a task of its own it ends by
        its time-out, and cannot keep its caller from being cancelled.
        """
        async with TaskGroup() as tasks:
            asked = tasks.create_task(self._answer_or_failure())
        return _unless_failed(asked.result())

    async def _answer_or_failure(self) -> LookupAnswer | LookupFailed:
        try:
            return await self._answer()
        except LookupFailed as failure:
            return failure

    async def _answer(self) -> LookupAnswer:
        match self._config.record:
            case DnsRecord.ADDRESS:
                assert self._config.port is not None, "checked with the region file"
                return await self._addresses(self._config.name, self._config.port)
            case DnsRecord.SRV:
                return await self._services()

    async def _addresses(self, name: str, port: int) -> LookupAnswer:
        """Look up IPv4 and IPv6 addresses. One kind may be missing, but neither lookup may fail: half an answer is
        refused."""
        async with TaskGroup() as tasks:
            asked = [tasks.create_task(self._resolve(name, kind)) for kind in ("A", "AAAA")]
        found = [_unless_failed(each.result()) for each in asked]
        locations = [
            ReplicaLocation(ip_address(record.address), port, name)
            for each in found
            for record in each.records
            if isinstance(record, dns.rdtypes.IN.A.A | dns.rdtypes.IN.AAAA.AAAA)
        ]
        return _answer(locations, [each.ttl_s for each in found if each.records])

    async def _services(self) -> LookupAnswer:
        found = _unless_failed(await self._resolve(self._config.name, "SRV"))
        targets = {
            (str(record.target).rstrip("."), record.port)
            for record in found.records
            if isinstance(record, dns.rdtypes.IN.SRV.SRV) and record.target != dns.name.root
        }
        if len(targets) > _TARGETS_MAX:
            raise LookupFailed(f"it names {len(targets)} servers, and {_TARGETS_MAX} are looked up")
        async with TaskGroup() as tasks:
            asked = [tasks.create_task(self._addresses_or_failure(*target)) for target in sorted(targets)]
        answers = [_unless_failed(each.result()) for each in asked]
        ttls_s = [each.ttl_ns // _SECOND_NS for each in answers]
        return _answer([location for each in answers for location in each.locations], [found.ttl_s, *ttls_s])

    async def _addresses_or_failure(self, name: str, port: int) -> LookupAnswer | LookupFailed:
        try:
            return await self._addresses(name, port)
        except LookupFailed as failure:
            return failure

    async def _resolve(self, name: str, kind: str) -> _Records | LookupFailed:
        try:
            answer = await self._resolver.resolve(dns.name.from_text(name), kind, search=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return _Records((), 0)
        except (dns.exception.DNSException, OSError) as error:
            return LookupFailed(f"{name} {kind}: {error}")
        return _Records(tuple(answer), answer.rrset.ttl if answer.rrset is not None else 0)


class _Records(Struct, frozen=True):
    records: tuple[object, ...]
    """Records of the kind asked for; empty where the name has none."""
    ttl_s: int


_Found = TypeVar("_Found")


def _unless_failed(result: _Found | LookupFailed) -> _Found:
    if isinstance(result, LookupFailed):
        raise result
    return result


def _answer(locations: list[ReplicaLocation], ttls_s: list[int]) -> LookupAnswer:
    usable = sorted(filter(is_one_servers, locations), key=_order)
    return LookupAnswer(tuple(dict.fromkeys(usable)), min(ttls_s, default=0) * _SECOND_NS)


def _order(location: ReplicaLocation) -> tuple[int, bytes, int, str]:
    return location.address.version, location.address.packed, location.port, location.name


def _resolver(nameservers: tuple[Address, ...], timeout_s: float) -> dns.asyncresolver.Resolver:
    try:
        resolver = dns.asyncresolver.Resolver(configure=not nameservers)
    except dns.resolver.NoResolverConfiguration as error:
        raise LookupFailed("this machine names no nameserver") from error
    if nameservers:
        resolver.nameservers = [dns.nameserver.Do53Nameserver(each.host, each.port) for each in nameservers]
    resolver.lifetime = timeout_s
    resolver.timeout = timeout_s / 2  # leaves time to ask a second nameserver, or the same one again
    return resolver
