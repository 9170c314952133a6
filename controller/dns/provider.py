"""Interface of DNS providers: each makes resolvers answer what a record tree says, by Nightside's own server or an
external service.

A provider carries out a tree and decides nothing: neither which gateways live nor where clients may be sent.
"""

from __future__ import annotations

from typing import Protocol

import dns.name
from msgspec import Struct

from controller.lease import Lease, LeaseOver
from gateway.core.vocabulary import RegionName
from mesh.naming.tree import RecordTree
from mesh.naming.zone import https_targets


class DnsError(Exception):
    """Says in words what is wrong with the names, and where."""


class DnsRefused(DnsError):
    """The provider cannot publish this tree, now or later; what it published before stays. Another tree may be
    accepted."""


class DnsOutdated(DnsError):
    """A later leader, or a later version, has been published already."""


class DnsUnavailable(DnsError):
    """The provider cannot be reached or does not answer in time. How much of the tree is published is unknown: publish
    it again, whole."""


def check_lease(lease: Lease, needed_s: float) -> None:
    """Check before a write that the lease lasts `needed_s`, the longest that the write may take. Raises DnsUnavailable,
    and then nothing is written."""
    try:
        lease.check(needed_s)
    except LeaseOver as error:
        raise DnsUnavailable(f"nothing was written: {error}") from error


def check_zone(tree: RecordTree, zone: str) -> None:
    """Check the tree's zone: a provider serves one zone as long as it runs. Raises DnsRefused."""
    if tree.zone != zone:
        raise DnsRefused(f"version {tree.version} is of {tree.zone or 'no zone'}, and {zone} is published: start anew")


class Changes(Struct, frozen=True):
    """Differences of a tree from the one before, so that only the records concerned are touched."""

    regions: frozenset[RegionName]
    """Regions whose clients are given other addresses."""
    gone: frozenset[RegionName]
    """Regions whose records are removed."""
    is_whole: bool
    """All has to be written: the zone, its name servers, the TTL, the port or TLS changed, or what is published is
    unknown."""


class PublishedRecords(Struct, frozen=True):
    """Published records, as a provider reads them."""

    version: int
    areas: dict[RegionName, frozenset[str]]
    anywhere: frozenset[str]
    further: dict[RegionName, frozenset[str]]
    """Addresses, among those of the region, that its HTTPS records name second; regions without them are left out."""


class DnsProvider(Protocol):
    """One zone at one provider. Every method raises DnsError; none waits longer than its deadline, whatever the service
    does. Calls come one at a time; a cancelled call leaves a state that can be published again."""

    @property
    def tells_clients_apart(self) -> bool:
        """Ability to give clients of different regions different answers for the mesh's name. A provider without it
        gives every client the answer for unknown locations, has the regions' own names for the rest, and refuses a tree
        with a closed jurisdiction, whose clients it could not keep there."""
        ...

    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        """Publish a tree. When this returns, the service has taken all of it, and only another write can undo it.
        Returns the number of records changed: 0 where all was published already. The same tree may be given again; with
        everything changed it is compared with the records that are really there. Raises DnsOutdated for a tree older
        than those."""
        ...

    async def settle(self) -> None:
        """Wait until each server of the zone answers what was published last, as every resolver then does at most the
        TTL later, and do any work left over. May be cancelled at any time, and called again."""
        ...

    async def plan(self, tree: RecordTree) -> tuple[str, ...]:
        """Return the changes that publishing the tree would make, a line each, in the order of the writes, regardless
        of which controller leads. Writes nothing. Raises what `publish` would."""
        ...

    async def read(self) -> PublishedRecords | None:
        """Read the published records from the service; None: none of Nightside's."""
        ...

    async def close(self) -> None:
        """Close connections. Published records stay."""
        ...


def changes_between(before: RecordTree | None, after: RecordTree) -> Changes:
    """Compare two trees. `before` is what was published last; None where it is not known to be published whole."""
    old = {} if before is None else {each.region: each for each in before.areas}
    new = {each.region: each for each in after.areas}
    return Changes(
        regions=frozenset(region for region, area in new.items() if old.get(region) != area),
        gone=frozenset(old.keys() - new.keys()),
        is_whole=before is None or _frame(before) != _frame(after),
    )


def published_as(tree: RecordTree) -> PublishedRecords:
    """Records that `read` finds once a tree has been published whole."""
    areas = {each.region: frozenset(each.addresses) for each in tree.areas}
    targets = https_targets(dns.name.from_text(tree.zone), tree)
    further = {region: frozenset(found[-1].addresses) for region, found in targets.items()}
    return PublishedRecords(tree.version, areas, frozenset(tree.anywhere), further)


def _frame(tree: RecordTree) -> tuple[object, ...]:
    return tree.zone, tree.name_servers, tree.ttl_s, tree.port, tree.tls
