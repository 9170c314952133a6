"""Whoever makes the world's resolvers say what a record tree says: the server of our own, or a service beside us.

A provider carries out what a tree says and decides nothing: not who lives, nor who may be sent where.
"""

from __future__ import annotations

from typing import Protocol

from controller.lease import Lease, LeaseOver
from gateway.core.value import value
from gateway.core.vocabulary import RegionName
from gateway.ground.naming.tree import RecordTree


class DnsError(Exception):
    """Says in words what is wrong with the names, and where."""


class DnsRefused(DnsError):
    """It cannot say this, now or later: what it said before stays. Another tree may do."""


class DnsOutdated(DnsError):
    """It says something newer already: whoever published that comes after us."""


class DnsUnavailable(DnsError):
    """It cannot be reached or does not answer in time. Nobody knows how much of it is said by now: publish it again,
    whole."""


def check_lease(lease: Lease, needed_s: float) -> None:
    """Before each write, with the longest that it may take. Raises DnsUnavailable: then nothing is written."""
    try:
        lease.check(needed_s)
    except LeaseOver as error:
        raise DnsUnavailable(f"nothing was written: {error}") from error


def check_zone(tree: RecordTree, zone: str) -> None:
    """A provider is of one zone for as long as it runs. Raises DnsRefused."""
    if tree.zone != zone:
        raise DnsRefused(f"version {tree.version} is of {tree.zone or 'no zone'}, and {zone} is published: start anew")


@value
class Changes:
    """What a tree says that the one before did not, so that no more is touched than has to be."""

    regions: frozenset[RegionName]
    """Whose clients are told of others now."""
    gone: frozenset[RegionName]
    """Of which nothing is said any more."""
    is_anywhere: bool
    """Whoever is told to clients of unknown whereabouts."""
    is_whole: bool
    """The zone, who answers for it, the TTL, the port, TLS, or nobody knows what is said now: then all of it."""


@value
class Published:
    """What is said, as a provider finds it when it looks."""

    version: int
    areas: dict[RegionName, frozenset[str]]
    anywhere: frozenset[str]


class DnsProvider(Protocol):
    """One zone, at one provider. Every method raises DnsError; none waits longer than its deadline, whatever the other
    side does. One call at a time; one that is cancelled leaves what can be published again."""

    @property
    def tells_clients_apart(self) -> bool:
        """Whether the one name can say different things to clients of different regions. One that cannot tells
        everybody what is for anywhere, has the regions' own names for the rest, and refuses a tree with a closed
        jurisdiction: it could not keep its clients there."""
        ...

    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        """When this returns, what the tree says has been taken, all of it, and nothing can undo that but another
        write. Gives how many records were changed: 0 where it was said already. The same tree may come again; with
        everything changed it is compared with what is really there. Raises DnsOutdated for a tree older than that."""
        ...

    async def settle(self) -> None:
        """Until each server of the zone says what was published last, and whatever else may wait is done: at most the
        TTL later so does every resolver. May be cancelled at any time, and called again."""
        ...

    async def plan(self, tree: RecordTree) -> tuple[str, ...]:
        """What publishing it would change there now, a line each, in the order of the writes, whoever leads. Writes
        nothing. Raises what publishing it would."""
        ...

    async def read(self) -> Published | None:
        """What is said now, read from whoever says it. None: nothing of ours."""
        ...

    async def close(self) -> None:
        """Let go of connections. What was published stays."""
        ...


def changes_between(before: RecordTree | None, after: RecordTree) -> Changes:
    """`before` is what was published last; None where nobody knows that it was published whole."""
    old = {} if before is None else {each.region: each for each in before.areas}
    new = {each.region: each for each in after.areas}
    return Changes(
        regions=frozenset(region for region, area in new.items() if old.get(region) != area),
        gone=frozenset(old.keys() - new.keys()),
        is_anywhere=before is None or before.anywhere != after.anywhere,
        is_whole=before is None or _frame(before) != _frame(after),
    )


def published_as(tree: RecordTree) -> Published:
    """What is found once a tree has been published whole."""
    areas = {each.region: frozenset(each.addresses) for each in tree.areas}
    return Published(tree.version, areas, frozenset(tree.anywhere))


def _frame(tree: RecordTree) -> tuple[object, ...]:
    return tree.zone, tree.name_servers, tree.ttl_s, tree.port, tree.tls
