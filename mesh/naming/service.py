"""Answers DNS queries for the mesh's name at the configured addresses, from the last record tree. The controller runs
one, and so does a gateway whose region file configures it.

It stores nothing on disk: the caller that gives it trees knows where the last one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from structlog.typing import FilteringBoundLogger

from mesh.clock import Clock
from mesh.logs import LogRateLimit
from mesh.naming.answers import DnsAnswers
from mesh.naming.client_location import Address as ClientAddress
from mesh.naming.counters import DnsCounters
from mesh.naming.limits import ConnectionLimit, DatagramLimit, DnsLimits, TimeShare, network_around
from mesh.naming.server import Common, DnsServer, Inherited
from mesh.naming.tree import RecordTree
from mesh.values import Address

_TOLD_AGAIN_NS = 60_000_000_000
"""Least time between log lines that clients can cause."""


class NameService:
    """DNS service of a program. It may be given trees before it listens, and without ever listening."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, limits: DnsLimits | None = None) -> None:
        limits = limits or DnsLimits()
        self.counters = DnsCounters()
        self._answers = DnsAnswers()
        self._servers: list[DnsServer] = []
        self._clock = clock
        self._log = log
        self._limits = limits
        self._limited = LogRateLimit(clock, _TOLD_AGAIN_NS)
        self._faults = LogRateLimit(clock, _TOLD_AGAIN_NS)
        self._common = Common(
            self._answers,
            clock,
            limits,
            self.counters,
            DatagramLimit(limits),
            TimeShare(limits.time_max_ns),
            ConnectionLimit(limits),
            self._tell_limited,
            self._tell_fault,
        )
        self.counters.follow(lambda: self.version, lambda: bool(self._servers) and self.tree is None)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses that the service listens on."""
        return tuple(each.address for each in self._servers)

    @property
    def tree(self) -> RecordTree | None:
        """Record tree that queries are answered from; None where there is none."""
        return self._answers.tree

    @property
    def version(self) -> int:
        """Version of that tree; 0 without one."""
        return 0 if self.tree is None else self.tree.version

    async def start(
        self, addresses: Iterable[Address], inherited: Callable[[Address], Inherited | None] = lambda _: None
    ) -> None:
        """Listen on the addresses. `inherited` gives sockets that are already bound to an address. Raises OSError with
        the address in it, and then listens on none."""
        try:
            for each in addresses:
                self._servers.append(await self._started(each, inherited(each)))
        except OSError:
            await self.stop()
            raise
        if self._servers:
            self._log.info("dns_server_started", addresses=[str(each) for each in self.addresses], version=self.version)

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for each in servers:
            await each.stop()

    def check(self, tree: RecordTree) -> None:
        """Raise ValueError, with a reason, for a tree that cannot be answered from."""
        self._answers.prepared(tree)

    def apply(self, tree: RecordTree) -> None:
        """Answer from this tree; the caller knows that it is the newest. Raises ValueError, with a reason, for a tree
        that cannot be answered from, and keeps the one before."""
        before = self.tree
        self._answers.apply(tree)
        if before is None or before.version != tree.version:
            self._log.info("dns_records_applied", zone=tree.zone, version=tree.version, region_count=len(tree.areas))

    def sockets(self) -> list[Inherited]:
        """Copies of the listening sockets, in the order of the addresses, which the caller closes."""
        return [each.sockets() for each in self._servers]

    async def shut(self) -> None:
        """Stop accepting: new queries wait in the system's queues."""
        for each in self._servers:
            await each.shut()

    async def reopen(self) -> None:
        """Accept again after `shut`."""
        for each in self._servers:
            await each.reopen()

    async def _started(self, address: Address, inherited: Inherited | None) -> DnsServer:
        try:
            return await DnsServer(self._common).start(address.host, address.port, inherited)
        except OSError as error:
            why = f"dns.listen: names cannot be answered at {address}: {error.strerror or error}"
            raise OSError(error.errno, why) from error

    def _tell_limited(self, client: ClientAddress) -> None:
        if self._limited.turn() is not None:
            network = network_around(client)
            self._log.warning("dns_client_rate_limited", network=str(network), answers_per_s=self._limits.answers_per_s)

    def _tell_fault(self, error: Exception) -> None:
        if self._faults.turn() is not None:
            self._log.error("dns_internal_error", exc_info=error)
