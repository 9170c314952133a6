"""Route53 as a provider: a tree becomes record sets, written in batches that Route53 refuses from a superseded writer.

Route53's own health checks only leave a gateway out while another one of the same pool answers: they lead no client to
a region that the tree did not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from controller.dns.claim import OwnerClaim, check_claim, refuse_foreign
from controller.dns.config import Route53Config
from controller.dns.provider import Changes, DnsError, DnsRefused, DnsUnavailable, PublishedRecords, check_zone
from controller.dns.route53.api import BatchRefused, Route53Api
from controller.dns.route53.changes import Action, RecordChange, batches_of, changes_to
from controller.dns.route53.checks import HealthChecks
from controller.dns.route53.layout import Route53Layout
from controller.dns.route53.record_sets import RecordSet
from controller.lease import Lease
from mesh.clock import Clock
from mesh.naming.tree import RecordTree
from mesh.supervisor import Backoff

_SECOND_NS = 1_000_000_000
_SYNC_POLLS = Backoff(_SECOND_NS, 8 * _SECOND_NS)
_SYNC_MAX_NS = 600 * _SECOND_NS
"""Longest wait for all of Route53's servers; AWS says within a minute, as a rule."""


class _Plan(Struct, frozen=True):
    batches: tuple[tuple[RecordChange, ...], ...]
    after: tuple[RecordSet, ...]

    @property
    def changes(self) -> list[RecordChange]:
        return [each for batch in self.batches for each in batch]


class Route53Dns:
    """One hosted zone, or the part of one below the mesh's name."""

    tells_clients_apart = True

    def __init__(
        self,
        config: Route53Config,
        api: Route53Api,
        zone: str,
        owner: str,
        lease: Lease,
        *,
        clock: Clock,
        on_in_sync: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """`zone` is the mesh's name, with the final dot. `on_in_sync` is called with the seconds from a change's
        acceptance until each of Route53's servers had it. Raises ValueError for places that Route53 does not know."""
        self._layout = Route53Layout(zone, api.hosted_zone, config)
        self._checks = HealthChecks(config.health_checks, zone, owner, api, clock)
        self._owner = owner
        self._lease = lease
        self._clock = clock
        self._api = api
        self._on_in_sync = on_in_sync
        self._found: tuple[RecordSet, ...] | None = None
        """Record sets as last read or written; None: unknown."""
        self._tree: RecordTree | None = None
        """Tree published last."""
        self._pending: tuple[str, int] | None = None
        """Id of the last change, and the time of its acceptance."""

    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        check_zone(tree, self._layout.zone)
        if changes.is_whole:
            self._found = None
        for last in (False, True):
            plan = self._planned(tree, await self._known(tree), self._lease.token)
            try:
                await self._write(plan, tree)
            except BatchRefused:
                if last:
                    raise
            else:
                self._tree = tree
                return len(plan.changes)
        raise AssertionError("the second time is the last")

    async def settle(self) -> None:
        """Create the health checks, a call each, and publish the records with them; then wait until all servers have
        the last change. Raises DnsError where some addresses cannot be checked, or are too many."""
        if self._tree is None:
            return
        left_out = self._layout.left_out(self._tree)
        unchecked = await self._checks.complete(self._tree, self._layout.addresses(self._tree))
        await self.publish(self._tree, NOTHING_NEW)
        await self._checks.sweep()
        await self._until_in_sync()
        if faults := [each for each in (left_out, unchecked) if each]:
            raise DnsError("; ".join(faults))

    async def plan(self, tree: RecordTree) -> tuple[str, ...]:
        check_zone(tree, self._layout.zone)
        self._found = None
        found = await self._known(tree)
        claim = self._layout.claim_of(found)
        plan = self._planned(tree, found, self._lease.token if claim is None else claim.term)
        return tuple(map(str, plan.changes))

    async def read(self) -> PublishedRecords | None:
        found = await self._api.records(self._layout.zone)
        claim = self._layout.claim_of(found)
        return None if claim is None or claim.owner != self._owner else self._layout.published(found, claim)

    async def close(self) -> None:
        self._api.close()

    async def _known(self, tree: RecordTree) -> tuple[RecordSet, ...]:
        found = self._found
        if found is not None:
            claim = self._layout.claim_of(found)
            said = OwnerClaim.following(claim, self._owner, self._lease.token, tree)
            if claim is not None and set(said.regions) <= set(claim.regions) and said.has_targets <= claim.has_targets:
                return found  # new names may hold records of other origin
        self._found = tuple(await self._api.records(self._layout.zone))
        return self._found

    def _planned(self, tree: RecordTree, found: Sequence[RecordSet], term: int) -> _Plan:
        """Plan the changes from `found` to the tree. Raises DnsRefused and DnsOutdated."""
        claim = self._layout.claim_of(found)
        if claim is not None:
            check_claim(claim, self._owner, term, tree.version)
        said = OwnerClaim.following(claim, self._owner, term, tree)
        try:
            wanted = self._layout.wanted(tree, said, self._checks.known(found))
            ours = [] if claim is None else [each for each in found if self._layout.is_ours(each, claim)]
            claims = said, _of_both(claim, said)
            claimed = [
                each for each in found if each not in ours and any(self._layout.is_ours(each, one) for one in claims)
            ]
        except ValueError as error:
            raise DnsRefused(f"version {tree.version} cannot be said there: {error}") from error
        refuse_foreign(f"{each.name} {each.kind}" for each in claimed)
        changes = [
            each for each in changes_to(ours, wanted) if each.record_set.key != self._layout.claim_record(said).key
        ]
        is_news = claim is None or replace(claim, writes=said.writes) != said
        if not changes and not is_news:
            return _Plan((), tuple(found))
        return _Plan(tuple(self._batches(changes, claim, said)), tuple(wanted))

    def _batches(
        self, changes: Sequence[RecordChange], claim: OwnerClaim | None, said: OwnerClaim
    ) -> list[tuple[RecordChange, ...]]:
        """Add to each batch the claim before and after it; until the last batch, the claim covers both old and new
        names."""
        batches = list(batches_of(changes, len(" ".join(said.strings())) * 2)) or [[]]
        made, before = [], claim
        for number, batch in enumerate(batches, 1):
            writes = said.writes + number - 1
            if number == len(batches):
                after = replace(said, writes=writes)
            else:
                version = 0 if claim is None else claim.version
                after = replace(_of_both(claim, said), version=version, writes=writes)
            taken = [] if before is None else [RecordChange(Action.DELETE, self._layout.claim_record(before))]
            put = RecordChange(Action.CREATE, self._layout.claim_record(after))
            made.append((*taken, put, *batch))
            before = after
        return made

    async def _write(self, plan: _Plan, tree: RecordTree) -> None:
        if not plan.batches:
            return
        self._found = None  # unknown until all of it is written
        for batch in plan.batches:
            change_id = await self._api.change(batch, f"version {tree.version}, term {self._lease.token}")
            self._pending = change_id, self._clock.now_ns()
        claims = [each.record_set for each in plan.batches[-1] if each.action is Action.CREATE][:1]
        kept = [each for each in plan.after if each.key != claims[0].key]
        self._found = (*kept, *claims)

    async def _until_in_sync(self) -> None:
        polls = 0
        while self._pending is not None:
            pending = change_id, since_ns = self._pending
            if await self._api.is_in_sync(change_id):
                if self._pending == pending:
                    self._pending = None
                self._on_in_sync((self._clock.now_ns() - since_ns) / _SECOND_NS)
                return
            if self._clock.now_ns() - since_ns > _SYNC_MAX_NS:
                self._pending = None
                raise DnsUnavailable(f"Route53 has not told all its servers of {change_id} within ten minutes")
            polls += 1
            await asyncio.sleep(_SYNC_POLLS.pause_s(polls))


def _of_both(claim: OwnerClaim | None, said: OwnerClaim) -> OwnerClaim:
    """Return the claim on the names of two claims, with the services of the earlier one."""
    if claim is None:
        return said
    regions = tuple(sorted({*said.regions, *claim.regions}))
    return replace(claim, term=said.term, regions=regions, has_targets=said.has_targets or claim.has_targets)


NOTHING_NEW = Changes(frozenset(), frozenset(), is_whole=False)
