"""Finds replicas by a DNS name, looked up repeatedly. A failed lookup or an empty answer removes no replica.

An address is dropped only after several answers in a row left it out: servers may return a part of their records at a
time, and probes find dead engines anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Never

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import DnsRecord, DnsReplicasConfig, ReplicaConfig
from gateway.discovery.names import LookupAnswer, LookupFailed, NameLookup
from gateway.discovery.source import Report
from gateway.discovery.templates import ReplicaLocation, replica_at

_SECOND_NS = 1_000_000_000


class DnsSource:
    """Replicas behind one DNS name."""

    def __init__(self, config: DnsReplicasConfig, settings: DiscoveryConfig, log: FilteringBoundLogger) -> None:
        self.config = config
        self._settings = settings
        self._log = log.bind(name=config.name, record=config.record)
        self._misses: dict[ReplicaLocation, int] = {}
        """Known locations, each with the number of answers in a row that left it out."""
        self._looked = asyncio.Event()
        self._trouble = ""

    @property
    def name(self) -> str:
        return f"dns:{self.config.template.spec.replica_id}"

    async def first_look(self) -> None:
        await self._looked.wait()

    async def run(self, report: Report) -> Never:
        while True:
            wait_ns = await self._look(report)
            self._looked.set()
            await asyncio.sleep(wait_ns / _SECOND_NS)

    async def _look(self, report: Report) -> int:
        """Look the name up once. Return nanoseconds until the next lookup."""
        try:
            answer = await NameLookup(self.config, self._settings.timeout_ns).ask()
            if not answer.locations:
                raise LookupFailed("the name leads nowhere")
        except LookupFailed as failure:
            self._complain(str(failure))
            return self._settings.interval_min_ns
        self._trouble = ""
        self._take_in(answer)
        report(self._replicas())
        return min(max(answer.ttl_ns, self._settings.interval_min_ns), self._settings.interval_max_ns)

    def _take_in(self, answer: LookupAnswer) -> None:
        found = set(answer.locations)
        misses = {location: 0 if location in found else count + 1 for location, count in self._misses.items()}
        kept = {location: count for location, count in misses.items() if count < self._settings.misses_max}
        fresh = [location for location in answer.locations if location not in kept]
        room = max(0, self._settings.replicas_max - len(kept))
        if len(fresh) > room:
            self._log.error("discovered_replicas_over_limit", found=len(found), replicas_max=len(kept) + room)
        self._misses = kept | dict.fromkeys(fresh[:room], 0)

    def _replicas(self) -> tuple[ReplicaConfig, ...]:
        return replicas_at(self.config, self._misses)

    def _complain(self, trouble: str) -> None:
        """Log a failure when it differs from the last one, rather than at each lookup."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._log.warning("dns_discovery_failed", reason=trouble, known=len(self._misses))


def replicas_at(config: DnsReplicasConfig, locations: Iterable[ReplicaLocation]) -> tuple[ReplicaConfig, ...]:
    """Replicas at the locations: one for each location, or one for each of its ranks."""
    tells_port = config.record is DnsRecord.SRV
    return tuple(
        replica
        for location in locations
        for replica in replica_at(config.template, config.scheme, location, tells_port=tells_port, is_named=True)
    )
