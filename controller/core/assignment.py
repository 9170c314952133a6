"""Owner of each replica: its home, the gateway to which an operator moved it, or the nearest adopter that residency
allows and that can serve it.

A living gateway keeps its replicas until it is told otherwise; moves that are not urgent happen in steps. The assigner
reads the mesh's state and keeps only the times of the next steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil

from msgspec import Struct

from controller.core.adoption import Adopters, Requirements, adopters_of, least_burdened
from controller.core.state import MeshState
from controller.core.vocabulary import Condition, GatewayEntry, ReplicaEntry
from gateway.core.vocabulary import GatewayId, ReplicaId

_Unit = tuple[ReplicaId, ...]
"""Replicas that share one owner: a single replica, or a disaggregated pool."""
_Moves = dict[GatewayId, list[tuple[_Unit, GatewayId]]]
"""Moves that wait for a step, by home: each unit and its new owner."""


class WantedOwner(Struct, frozen=True):
    """An assignment, and the replicas that could not be assigned."""

    owners: dict[ReplicaId, GatewayId]
    orphans: dict[GatewayId, tuple[int, str]]
    """Count of a home's replicas that no gateway may serve, and the reason, by home."""


class Assigner:
    """Computes the assignment from the state of the mesh."""

    def __init__(self, mesh: MeshState) -> None:
        self._mesh = mesh
        self._next_step_ns: dict[GatewayId, int] = {}
        """Time from which the next of a home's replicas may move without urgency, by home."""

    def next_step_ns(self) -> int | None:
        return min(self._next_step_ns.values(), default=None)

    def forget(self, gone: GatewayId) -> None:
        self._next_step_ns.pop(gone, None)

    def wanted(self, owners: dict[ReplicaId, GatewayId], now_ns: int) -> WantedOwner:
        """Return the owner that each replica should have, given its present owner. O(replicas)."""
        search = _Search(self._mesh, owners)
        calm = self._calm(owners)
        settled: dict[ReplicaId, GatewayId] = {}
        waiting: _Moves = {}
        orphans: Counter[GatewayId] = Counter()
        reasons: dict[GatewayId, str] = {}
        for unit, replica in _units(self._mesh.replicas):
            if replica.home in calm:
                settled.update(dict.fromkeys(unit, replica.home))
                continue
            owner = _owner_of(unit, owners)
            required = self._required(unit, replica)
            goal = search.goal(replica, required, owner, len(unit))
            if owner is not None and search.may_keep(owner, required):
                settled.update(dict.fromkeys(unit, owner))
                if goal is not None and goal != owner:
                    waiting.setdefault(replica.home, []).append((unit, goal))
            elif goal is not None:
                settled.update(dict.fromkeys(unit, goal))
            else:
                orphans[replica.home] += len(unit)
                reasons[replica.home] = search.adopters(required).why
        settled |= self._step(waiting, now_ns)
        return WantedOwner(settled, {home: (count, reasons[home]) for home, count in orphans.items()})

    def _required(self, unit: _Unit, replica: ReplicaEntry) -> Requirements:
        """Requirements of a unit's adopter. A gateway has refused a pool if it left out all replicas of one part."""
        mesh = self._mesh
        if not mesh.refusals:
            return Requirements(replica.home, replica.needs)
        refusals: list[tuple[GatewayId, str]] = []
        parts: dict[str, list[ReplicaId]] = {}
        for each in unit:
            parts.setdefault(mesh.replicas[each].part, []).append(each)
        for gateway_id, refused in sorted(mesh.refusals.items()):
            lost = next((part for part in parts.values() if all(each in refused for each in part)), None)
            if lost is not None:
                refusals.append((gateway_id, refused[lost[0]].reason))
        return Requirements(replica.home, replica.needs, tuple(refusals))

    def _calm(self, owners: dict[ReplicaId, GatewayId]) -> set[GatewayId]:
        """Homes that own all their replicas and keep them, so that no owner has to be searched: most homes, most of the
        time."""
        frozen = bool(self._mesh.frozen)
        keeps = {
            home
            for home, entry in self._mesh.gateways.items()
            if not entry.is_drained and (frozen or self._mesh.holds(home))
        }
        moved = {
            replica.home
            for replica_id, replica in self._mesh.replicas.items()
            if owners.get(replica_id) != replica.home or replica.pinned_to is not None
        }
        return keeps - moved

    def _step(self, waiting: _Moves, now_ns: int) -> dict[ReplicaId, GatewayId]:
        """Choose the replicas that move in this step among those whose move is not urgent, by home: the gateways on
        both sides need time to adapt."""
        for home in self._next_step_ns.keys() - waiting.keys():
            del self._next_step_ns[home]
        if self._mesh.frozen or not waiting:
            return {}
        moved: dict[ReplicaId, GatewayId] = {}
        config = self._mesh.config
        homes = Counter(replica.home for replica in self._mesh.replicas.values() if replica.home in waiting)
        for home, moves in waiting.items():
            if now_ns < self._next_step_ns.get(home, now_ns):
                continue
            at_once = max(1, ceil(config.step_share * homes[home]))
            left = sorted(moves)
            while left and at_once > 0:
                unit, goal = left.pop(0)
                moved.update(dict.fromkeys(unit, goal))
                at_once -= len(unit)
            if left:
                self._next_step_ns[home] = now_ns + config.step_ns
            else:
                self._next_step_ns.pop(home, None)
        return moved


def _units(replicas: Mapping[ReplicaId, ReplicaEntry]) -> Iterator[tuple[_Unit, ReplicaEntry]]:
    """Yield each unit with the entry that decides for it: an operator who moved one replica of a pool has moved the
    pool."""
    pools: dict[tuple[GatewayId, str], list[ReplicaEntry]] = {}
    for replica_id, replica in replicas.items():
        if replica.pool:
            pools.setdefault((replica.home, replica.pool), []).append(replica)
        else:
            yield (replica_id,), replica
    for members in pools.values():
        unit = tuple(each.replica_id for each in members)
        yield unit, next((each for each in members if each.pinned_to is not None), members[0])


def _owner_of(unit: _Unit, owners: Mapping[ReplicaId, GatewayId]) -> GatewayId | None:
    """Gateway that owns most of the unit: a pool may have gained members since it was last assigned."""
    having = Counter(owners[each] for each in unit if each in owners)
    return min(having, key=lambda each: (-having[each], each), default=None)


class _Search:
    """One search over an unchanging mesh; only the counts of assigned replicas change."""

    def __init__(self, mesh: MeshState, owners: dict[ReplicaId, GatewayId]) -> None:
        self._mesh = mesh
        self._takers = mesh.takers()
        self._taking = {entry.gateway_id for entry in self._takers}
        self._alone = mesh.alone()
        self._burden = Counter(owners.values())
        self._adopters: dict[Requirements, Adopters] = {}
        self._allowed: dict[tuple[GatewayId, GatewayId], bool] = {}
        """True where the policy of the first gateway's region lets the second adopt its replicas."""
        self._adopted = Counter(
            owner for each, owner in owners.items() if each in mesh.replicas and mesh.replicas[each].home != owner
        )
        self._full: list[GatewayEntry] = []
        """Gateways that serve `adopted_max` replicas of other gateways and may be given no more."""
        self._look_for_full()

    def goal(
        self, replica: ReplicaEntry, required: Requirements, owner: GatewayId | None, count: int
    ) -> GatewayId | None:
        """Return the gateway to which a unit of `count` replicas should move: the one where it belongs, or an adopter;
        None where it stays or no gateway may take it."""
        belongs = self._belongs(replica, required, owner)
        if belongs is not None:
            return belongs
        stays = owner is not None and self.may_keep(owner, required) and not self._mesh.gateways[owner].is_drained
        adopters = () if stays else self.adopters(required).gateways
        if not adopters:
            return None
        adopter = least_burdened(adopters, self._burden)
        self._burden[adopter] += count
        self._adopted[adopter] += count
        self._look_for_full()
        return adopter

    def _look_for_full(self) -> None:
        most = self._mesh.config.adopted_max
        if full := [each for each in self._takers if self._adopted[each.gateway_id] >= most]:
            self._full += full
            self._takers = [each for each in self._takers if each not in full]
            self._adopters.clear()

    def may_keep(self, owner: GatewayId, required: Requirements) -> bool:
        """Return whether the owner may keep a unit: the policy of the home's region still allows it, and the mesh is
        frozen, or the owner is not known to be down and has not left the unit out. Abilities are asked of a new owner
        only: a gateway of an earlier version announces none, and serves what it has."""
        if owner not in self._mesh.health or not self._is_allowed(required.home, owner):
            return False
        if self._mesh.frozen:
            return True
        return self._mesh.holds(owner) and not required.is_refused_by(owner)

    def adopters(self, required: Requirements) -> Adopters:
        if required not in self._adopters:
            found = self._find_adopters(required, self._takers)
            if not found.gateways and self._find_adopters(required, self._full).gateways:
                found = Adopters((), "every gateway that may have it serves decisions.adopted_max of others' already")
            self._adopters[required] = found
        return self._adopters[required]

    def _belongs(self, replica: ReplicaEntry, required: Requirements, owner: GatewayId | None) -> GatewayId | None:
        """Return the gateway to which an operator moved the replica, or its home. A home not heard from yet counts only
        where the replica has no owner."""
        pinned = replica.pinned_to
        if pinned is not None and pinned in self._taking and self._may_have(pinned, required, owner):
            return pinned
        if replica.home in self._taking or replica.home in self._alone:
            return replica.home
        home = self._mesh.health.get(replica.home)
        is_unknown = home is not None and home.condition is Condition.UNKNOWN
        return replica.home if owner is None and is_unknown else None

    def _may_have(self, gateway_id: GatewayId, required: Requirements, owner: GatewayId | None) -> bool:
        """True if the gateway may keep the unit, as its owner, or may be given it."""
        if gateway_id == owner:
            return self.may_keep(owner, required)
        return gateway_id == required.home or bool(self._find_among(required, gateway_id).gateways)

    def _is_allowed(self, home: GatewayId, adopter: GatewayId) -> bool:
        """True if the policy of the home's region lets the gateway serve the home's replicas."""
        if home == adopter:
            return True
        pair = (home, adopter)
        if pair not in self._allowed:
            self._allowed[pair] = bool(self._find_among(Requirements(home), adopter).gateways)
        return self._allowed[pair]

    def _find_among(self, required: Requirements, adopter: GatewayId) -> Adopters:
        entry = self._mesh.gateways.get(adopter)
        return self._find_adopters(required, [] if entry is None else [entry])

    def _find_adopters(self, required: Requirements, among: list[GatewayEntry]) -> Adopters:
        entry = self._mesh.gateways.get(required.home)
        if entry is None:
            return Adopters((), f"its home {required.home} is not registered")
        policy = self._mesh.effective_policy(entry.place.region)
        return adopters_of(entry, among, policy, self._mesh.geography, required)
