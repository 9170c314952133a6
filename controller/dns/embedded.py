"""Nightside's own DNS server as a provider: a tree is answered from as soon as it is handed over.

The gateways' name servers are outside its scope: they have the tree from their snapshots.
"""

from __future__ import annotations

from controller.dns.provider import Changes, DnsError, DnsOutdated, DnsRefused, PublishedRecords, published_as
from mesh.naming.service import NameService
from mesh.naming.tree import RecordTree


class EmbeddedDns:
    """Provider over a name service that its owner starts and stops."""

    tells_clients_apart = True

    def __init__(self, service: NameService) -> None:
        self._service = service
        self._is_closed = False

    async def publish(self, tree: RecordTree, _changes: Changes) -> int:
        changed = len(await self.plan(tree))
        self._service.apply(tree)
        return changed

    async def plan(self, tree: RecordTree) -> tuple[str, ...]:
        self._check_open()
        if tree.version < self._service.version:
            raise DnsOutdated(f"version {self._service.version} is answered from already, and this is {tree.version}")
        try:
            self._service.check(tree)
        except ValueError as error:
            raise DnsRefused(f"version {tree.version} cannot be answered from: {error}") from error
        return () if tree == self._service.tree else (f"answer from version {tree.version}",)

    async def settle(self) -> None:
        """Return at once: this process itself gives the answers."""

    async def read(self) -> PublishedRecords | None:
        self._check_open()
        return None if self._service.tree is None else published_as(self._service.tree)

    async def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise DnsError("the server of our own was let go of")
