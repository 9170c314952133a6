"""Invariants of a controller and the gateways that it steers, checked by an oracle that reads none of their state: it
records what each was told, and judges by rules that are restated here.

The first violation ends the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from controller.core import effects as ordered
from controller.core import events as news
from controller.core.effects import Effect as Order
from controller.core.events import Event as News
from controller.core.vocabulary import Condition, GatewayEntry, HeardPeer, ReplicaEntry
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import events
from gateway.core.kernel.effects import Effect, EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, Place, RegionName, ReplicaId, RequestId, TargetKind
from loadgen.simulator.checkers import Broken, names_place
from loadgen.simulator.control_sections import ControllerSection
from loadgen.simulator.faults import CONTROLLER
from loadgen.simulator.observers import GatewaySpec
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import ControlSnapshot
from mesh.naming.tree import Area, RecordTree

_SNAPSHOTS_MAX = 256

Disturbed = str | frozenset[str]
"""Location of a disturbance: a gateway, the controller, or the connection of two regions, one of which may be the
controller's own."""


@dataclass(slots=True)
class _Source:
    """Peer, or the controller, within a gateway's reach that has a newer snapshot than the gateway."""

    version: ControlVersion
    lost_ns: dict[ReplicaId, int] = field(default_factory=dict)
    """Replicas that belong to other gateways by this source's snapshot, each with the time since which that has been
    within the gateway's reach."""


@dataclass(slots=True)
class _Served:
    """Record of what one gateway was told in its present life."""

    place: Place
    taken: ControlVersion = field(default_factory=ControlVersion)
    origins: dict[RequestId, Place] = field(default_factory=dict)
    """Place where each of its requests entered the mesh."""
    sources: dict[str, _Source] = field(default_factory=dict)
    """Sources by peer, or the controller."""


@dataclass(slots=True)
class _Seen:
    """Record of what the controller was told of one gateway in the controller's present life."""

    condition: Condition = Condition.UNKNOWN
    is_connected: bool = False
    failures: int = 0
    has_answered: bool = False
    """True if it has answered a probe since it opened its stream, or the last one before."""
    was_refused: bool = False
    is_gone: bool = False
    """True if its host refused probes and most connected peers lost it too; until it is heard from again."""
    was_gone: bool = False
    """True if a probe was refused since it was last up and answered one."""
    well_since_ns: int | None = None
    """Time since which its stream has been open and no probe has failed; None while that is not so."""
    up_since_ns: int | None = None
    falls: int = 0
    """Times that it was called down since it was last up for `steady_after`, before a fall."""
    lost_ns: int | None = None
    """Time at which its stream was lost; None while it is open, or if there never was one."""
    said_by: dict[GatewayId, HeardPeer] = field(default_factory=dict)

    def connect(self, clock_ns: int) -> None:
        """Note that it has opened a stream; one that is open may be of another process."""
        self.has_answered &= not self.is_connected
        self.is_connected, self.failures, self.lost_ns = True, 0, None
        if self.well_since_ns is None:
            self.well_since_ns = clock_ns

    def disconnect(self, clock_ns: int) -> None:
        """Note that its stream has ended."""
        self.is_connected = self.has_answered = False
        self.well_since_ns, self.lost_ns = None, clock_ns


@dataclass(slots=True)
class _ControllerView:
    """Record of what one controller was told in its present life, and has ordered."""

    seen: dict[GatewayId, _Seen] = field(default_factory=dict)
    gateways: dict[GatewayId, GatewayEntry] = field(default_factory=dict)
    policies: dict[RegionName, ResidencyPolicy] = field(default_factory=dict)
    areas: dict[RegionName, Area] = field(default_factory=dict)
    """Areas of the records last published."""
    anywhere: tuple[str, ...] = ()
    """Addresses for clients from anywhere, likewise."""
    owners: dict[ReplicaId, GatewayId] = field(default_factory=dict)
    restored_down: frozenset[GatewayId] = frozenset()
    """Gateways that were down when the controller began; empty once they are registered, which is the next event."""
    frozen: str = ""
    frozen_since_ns: int = 0
    is_loss_believed: bool = False
    """True once most gateways were missing for `freeze_max`, after which the loss is accepted as real."""
    steps: dict[GatewayId, deque[tuple[int, int]]] = field(default_factory=dict)
    """Unforced moves by home: time and number of replicas."""
    replicas: dict[ReplicaId, ReplicaEntry] = field(default_factory=dict)
    refused_ns: dict[tuple[GatewayId, ReplicaId], int] = field(default_factory=dict)
    """Times at which gateways last reported that they leave a replica out."""

    def registered(self, event: news.RegistryApplied) -> None:
        """Replace the registry. A refusal ends with a change of its gateway or replica."""
        gateways = {each.gateway_id: each for each in event.gateways}
        replicas = {each.replica_id: each for each in event.replicas}
        self.refused_ns = {
            (gateway_id, replica_id): since_ns
            for (gateway_id, replica_id), since_ns in self.refused_ns.items()
            if self.gateways.get(gateway_id) == gateways.get(gateway_id)
            if self.replicas.get(replica_id) == replicas.get(replica_id)
        }
        self.gateways, self.replicas = gateways, replicas


class ControlWatch:
    """Observer of every step of the controllers and of each gateway."""

    def __init__(
        self,
        section: ControllerSection,
        homes: Mapping[ReplicaId, GatewayId],
        overlap_max_ns: int,
        pools: Iterable[frozenset[ReplicaId]] = (),
    ) -> None:
        """`overlap_max_ns`: nanoseconds for which a gateway may go on pushing to a replica after it could know of
        another owner; `pools`: workers of each disaggregated pool."""
        self.overlaps_ns: dict[ReplicaId, int] = {}
        """Longest time for which two gateways pushed to the same replica, by replica."""
        self._section = section
        self._config = section.as_config()
        self._homes = homes
        self._pools = tuple(pools)
        self._overlap_max_ns = overlap_max_ns
        self._now_ns = 0
        self._served: dict[GatewayId, _Served] = {}
        self._snapshots: dict[
            tuple[GatewayId, ControlVersion], tuple[ControlSnapshot, dict[RegionName, ResidencyPolicy]]
        ] = {}
        self._handed: dict[GatewayId, list[GatewayId]] = {}
        """Homes of the pools whose histories are on their way to a gateway, whose next snapshot has to grant them."""
        self._recorders: dict[int, set[GatewayId]] = {}
        """Gateways at which an answer of each length has ended: one of them recorded it."""
        self._away: dict[ControlVersion, dict[ReplicaId, GatewayId]] = {}
        self._minds: dict[str, _ControllerView] = {}
        """Records by controller."""
        self._mind = _ControllerView()
        """Record of the controller that spoke last."""
        self._leader = self._mind
        """Record of the controller that began a term last."""
        self._has_store = ""
        """Process that took the store last."""
        self._pushed: dict[ReplicaId, dict[GatewayId, int]] = {}
        """Time of the first push in the gateway's present life, by replica and gateway."""
        self._disturbed: dict[Disturbed, tuple[int, int]] = {}
        """Disturbances that delay news, by location: the number in progress, and when the last one was over, or will
        be."""

    # Gateways

    def on_start(self, spec: GatewaySpec, _policy: ResidencyPolicy, _core: GatewayCore) -> None:
        before = self._served.get(spec.gateway_id)
        taken = ControlVersion() if before is None else before.taken
        self._served[spec.gateway_id] = _Served(spec.place, taken)
        self._is_gone_from_reach(spec.gateway_id)

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        self._now_ns = now_ns
        served = self._served[gateway_id]
        if isinstance(event, events.RequestArrived):
            served.origins[event.profile.request_id] = served.place
        elif isinstance(event, events.ForwardArrived):
            served.origins[event.profile.request_id] = event.stamp.origin
        elif isinstance(event, events.LegEnded) and event.output_tokens is not None:
            self._recorders.setdefault(event.output_tokens, set()).add(gateway_id)
        for effect in effects:
            if isinstance(effect, StartLeg) and effect.target.kind is TargetKind.REPLICA:
                self._check_push(gateway_id, served, ReplicaId(effect.target.id), effect.request_id)
            elif isinstance(effect, EndRequest | RefuseForward):
                served.origins.pop(effect.request_id, None)

    def on_snapshot_sent(
        self, now_ns: int, snapshot: ControlSnapshot, policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        self._now_ns = now_ns
        granted = {each.home for each in snapshot.replicas}
        for home in self._handed.pop(snapshot.gateway_id, ()):
            detail = f"{home}'s to {snapshot.gateway_id}"
            self._expect("a history goes only to the gateway that serves the pool", home in granted, detail)
        self._away[snapshot.version] = {each.replica_id: each.owner for each in snapshot.away}
        self._snapshots[snapshot.gateway_id, snapshot.version] = snapshot, dict(policies)
        if len(self._away) > _SNAPSHOTS_MAX:
            del self._away[next(iter(self._away))]
        if len(self._snapshots) > _SNAPSHOTS_MAX:
            del self._snapshots[next(iter(self._snapshots))]
        self._note_newer(snapshot.gateway_id, CONTROLLER, snapshot.version)

    def on_history_sent(
        self, now_ns: int, gateway_id: GatewayId, history: PoolHistory, policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        """Check a history that is sent, whatever it says of its recorder: the policies of its home and of a region in
        which an answer of each length has ended let all tenants' requests be processed at the gateway. The home may
        have it in any case."""
        self._now_ns = now_ns
        self._handed.setdefault(gateway_id, []).append(history.home)
        places = {each: entry.place for each, entry in self._mind.gateways.items()}
        place = places[gateway_id]
        if place == places[history.home]:
            return
        allowed = {each for each, seat in places.items() if _lets_all_be(policies.get(seat.region), place)}
        what = "a history is only where the policies of its regions let all tenants' requests be"
        self._expect(what, history.home in allowed, f"{history.pool} of {history.home} at {place.region}")
        for _, length, _ in history.rows():
            recorders = self._recorders.get(length, set())
            detail = f"{length} tokens by {sorted(recorders)} at {place.region}"
            self._expect(what, not recorders.isdisjoint(allowed), detail)

    def on_snapshot_taken(self, now_ns: int, gateway_id: GatewayId, version: ControlVersion) -> None:
        self._now_ns = now_ns
        served = self._served.get(gateway_id)
        if served is None:
            return
        served.taken = version
        served.sources = {each: of for each, of in served.sources.items() if of.version.is_newer_than(version)}

    def on_newer_heard(self, now_ns: int, gateway_id: GatewayId, peer: GatewayId, version: ControlVersion) -> None:
        self._now_ns = now_ns
        self._note_newer(gateway_id, peer, version)

    def on_struck(self, _now_ns: int, gateway_id: GatewayId) -> None:
        self._served[gateway_id].sources = {}
        self._is_gone_from_reach(gateway_id)
        for by_gateway in self._pushed.values():
            by_gateway.pop(gateway_id, None)

    def disturbed(self, what: Disturbed, by: int, until_ns: int) -> None:
        """Record the beginning or end of a disturbance; news in transit may be late until `until_ns`."""
        count, last_ns = self._disturbed.get(what, (0, 0))
        self._disturbed[what] = count + by, max(last_ns, until_ns)

    def _is_gone_from_reach(self, gateway_id: GatewayId) -> None:
        """Remove a restarted or dead gateway from the sources: it cannot be asked any more for what it knew."""
        for served in self._served.values():
            served.sources.pop(gateway_id, None)

    def _note_newer(self, gateway_id: GatewayId, source: str, version: ControlVersion) -> None:
        served = self._served.get(gateway_id)
        if served is None or not version.is_newer_than(served.taken) or version not in self._away:
            return
        found = served.sources.get(source)
        if found is not None and not version.is_newer_than(found.version):
            return
        if any(each.version.is_newer_than(version) for each in served.sources.values()):
            return  # a newer version is within its reach already
        owners = self._away[version]
        if found is None:
            found = served.sources[source] = _Source(version)
        found.version = version
        for replica_id, home in self._homes.items():
            if owners.get(replica_id, home) != gateway_id:
                found.lost_ns.setdefault(replica_id, self._now_ns)
            else:
                for each in served.sources.values():
                    each.lost_ns.pop(replica_id, None)

    def _check_push(self, gateway_id: GatewayId, served: _Served, replica_id: ReplicaId, request_id: RequestId) -> None:
        home = self._homes[replica_id]
        where = f"{request_id} from {gateway_id} to {replica_id}"
        if home != gateway_id:
            self._check_adopted(gateway_id, served, replica_id, served.origins[request_id], where)
        if served.taken in self._away:
            owner = self._away[served.taken].get(replica_id, home)
            self._expect("no gateway pushes to what its own snapshot gives another", owner == gateway_id, where)
        for source, known in served.sources.items():
            if (lost_ns := known.lost_ns.get(replica_id)) is not None:
                late_ns = self._heard_for_ns(gateway_id, served, source, lost_ns)
                is_soon = late_ns <= self._overlap_max_ns
                self._expect(
                    "who hears of a newer owner stops pushing", is_soon, f"{where}, which {source} knows is another's"
                )
        self._note_overlap(gateway_id, replica_id)

    def _heard_for_ns(self, gateway_id: GatewayId, served: _Served, source: str, since_ns: int) -> int:
        """Nanoseconds for which nothing has kept the gateway from hearing its source's news; below zero while a
        disturbance does."""
        place = None if source == CONTROLLER else self._served[GatewayId(source)].place
        there = CONTROLLER if place is None else str(place.region)
        for what in (str(gateway_id), source, frozenset((str(served.place.region), there))):
            count, last_ns = self._disturbed.get(what, (0, 0))
            since_ns = max(since_ns, last_ns, self._now_ns + 1 if count else 0)
        return self._now_ns - since_ns

    def _check_adopted(
        self, gateway_id: GatewayId, served: _Served, replica_id: ReplicaId, origin: Place, where: str
    ) -> None:
        found = self._snapshots.get((gateway_id, served.taken))
        if found is None:
            return  # dropped from the record long ago
        snapshot, policies = found
        granted = {ReplicaId(each.document): each for each in snapshot.replicas}
        self._expect("only what was assigned is adopted", replica_id in granted, where)
        home = granted[replica_id].home_place
        policy = policies.get(home.region)
        for place in (served.place, origin):
            accepted = policy is not None and not policy.closed_reason
            accepted = accepted and (place == home or names_place(policy.accept, place))  # type: ignore[union-attr]
            self._expect("an adopted replica takes what its home accepts", accepted, f"{where}, come in at {place}")

    def _note_overlap(self, gateway_id: GatewayId, replica_id: ReplicaId) -> None:
        """Record an overlap: from the first push of the newer owner to the latest push of the earlier one."""
        by_gateway = self._pushed.setdefault(replica_id, {})
        began_ns = by_gateway.setdefault(gateway_id, self._now_ns)
        owner = self._leader.owners.get(replica_id)
        if owner != gateway_id and owner in by_gateway and by_gateway[owner] >= began_ns:
            overlap_ns = self._now_ns - by_gateway[owner]
            self.overlaps_ns[replica_id] = max(overlap_ns, self.overlaps_ns.get(replica_id, 0))

    # The controller

    def seat(self, controller: str) -> _Seat:
        """Observer for the steps of one controller."""
        return _Seat(self, controller)

    def spoke(self, controller: str) -> None:
        self._mind = self._minds.get(controller, self._mind)

    def began(self, controller: str, now_ns: int, term: int) -> None:
        self.on_controller_start(now_ns, term)
        self._minds[controller] = self._mind

    def on_controller_start(self, now_ns: int, _term: int) -> None:
        self._now_ns = now_ns
        self._mind = self._leader = _ControllerView()

    def on_store_taken(self, now_ns: int, process: str) -> None:
        self._now_ns = now_ns
        self._has_store = process

    def on_store_written(self, now_ns: int, process: str) -> None:
        self._now_ns = now_ns
        detail = f"{process}, and {self._has_store} has it"
        self._expect("nothing is written by a controller that was deposed", process == self._has_store, detail)

    def on_acting(self, now_ns: int, process: str) -> None:
        self._now_ns = now_ns
        detail = f"{process}, and {self._has_store} leads"
        self._expect("no two controllers act as the leader", process == self._has_store, detail)

    def on_controller_step(self, now_ns: int, clock_ns: int, event: News, effects: list[Order]) -> None:
        self._now_ns = now_ns
        self._take_in(event, clock_ns)
        for seen in self._mind.seen.values():
            seen.is_gone = not seen.is_connected and (seen.is_gone or self._is_gone(seen))
        for effect in effects:
            match effect:
                case ordered.TellFrozen():
                    self._note_frozen(effect.reason, clock_ns)
                case ordered.TellCondition():
                    self._check_condition(effect, clock_ns)
                case ordered.KeepPolicy():
                    self._mind.policies[effect.policy.place.region] = effect.policy
                case ordered.KeepOwners():
                    self._check_owners(effect, clock_ns)
                case ordered.PublishRecords():
                    self._check_records(effect.tree)
                case _:
                    pass
        for effect in effects:
            if isinstance(effect, ordered.TellCondition) and effect.condition is Condition.ALONE:
                self._check_named(effect.gateway_id)

    def _take_in(self, event: News, clock_ns: int) -> None:
        match event:
            case news.StateRestored():
                self._mind.owners = dict(event.owners)
                self._mind.policies = {each.place.region: each for each in event.policies}
                self._mind.restored_down = frozenset(event.down)
            case news.RegistryApplied():
                self._mind.registered(event)
                for gateway_id in self._mind.gateways:
                    was_down = gateway_id in self._mind.restored_down
                    fresh = _Seen(Condition.DOWN, is_gone=True, was_gone=True, falls=1) if was_down else _Seen()
                    self._mind.seen.setdefault(gateway_id, fresh)
                self._mind.restored_down = frozenset()
            case news.GatewayConnected():
                self._mind.seen[event.gateway_id].connect(clock_ns)
                for pair in [each for each in self._mind.refused_ns if each[0] == event.gateway_id]:
                    del self._mind.refused_ns[pair]
                if not any(each.lost_ns is not None for each in self._mind.seen.values()):
                    self._mind.is_loss_believed = False
            case news.GatewayDisconnected():
                self._mind.seen[event.gateway_id].disconnect(clock_ns)
            case news.GatewayProbed():
                seen = self._mind.seen[event.gateway_id]
                seen.failures = 0 if event.healthy else seen.failures + 1
                seen.was_refused = event.was_refused
                seen.has_answered = event.healthy or (seen.has_answered and seen.is_connected)
                is_well = event.healthy and seen.condition is Condition.UP
                seen.was_gone = not is_well and (seen.was_gone or event.was_refused)
                seen.is_gone &= not event.healthy
                if not event.healthy:
                    seen.well_since_ns = None
                elif seen.is_connected and seen.well_since_ns is None:
                    seen.well_since_ns = clock_ns
            case news.PeersHeard():
                for said in event.peers:
                    if said.gateway_id in self._mind.seen:
                        self._mind.seen[said.gateway_id].said_by[event.gateway_id] = said
            case news.GrantsLeftOut():
                for replica_id, _ in event.left_out:
                    self._mind.refused_ns[event.gateway_id, replica_id] = clock_ns
            case _:
                pass

    def _check_condition(self, told: ordered.TellCondition, clock_ns: int) -> None:
        seen = self._mind.seen[told.gateway_id]
        is_sure = self._mind.is_loss_believed or not self._has_lost_most(clock_ns)
        before, seen.condition = seen.condition, told.condition
        if told.condition is Condition.DOWN and before is not Condition.RETURNING:
            self._expect("no gateway whose stream is open is called down", not seen.is_connected, told.gateway_id)
            enough = seen.failures >= self._config.probe_failures_min
            self._expect("who is called down did not answer probes", enough, f"{told.gateway_id}: {seen.failures}")
            witnesses = [each for each in self._witnesses_of(seen) if self._heard_lately(each, clock_ns)]
            spoken_for = witnesses and not seen.is_gone
            self._expect("no gateway that a peer hears is called down", not spoken_for, told.gateway_id)
            self._expect("no gateway is called down while frozen", not self._mind.frozen, told.gateway_id)
            self._expect("no gateway is called down when most are missing at once", is_sure, told.gateway_id)
            self._note_fall(seen, clock_ns)
            self._mind.steps.pop(told.gateway_id, None)  # steps begin anew after a fall
        if told.condition is Condition.ALONE:
            is_due = before is Condition.RETURNING and seen.has_answered and self._is_alone(told.gateway_id)
            self._expect("who is called alone answers, and is all that its clients have", is_due, told.gateway_id)
        if told.condition is Condition.UP:
            if before is not Condition.UNKNOWN:
                self._check_return(told.gateway_id, seen, clock_ns)
            seen.up_since_ns, seen.was_gone = clock_ns, False

    def _note_fall(self, seen: _Seen, clock_ns: int) -> None:
        was_steady = seen.up_since_ns is not None and clock_ns - seen.up_since_ns >= self._config.steady_after_ns
        seen.falls = 1 if was_steady else seen.falls + 1
        seen.up_since_ns = None

    def _check_return(self, gateway_id: GatewayId, seen: _Seen, clock_ns: int) -> None:
        """Check that a gateway is up only after it was watched, twice as long with each fall that is remembered. One
        that was never gone, and is not known to have fallen before, needs no more than to answer a probe."""
        well_ns = -1 if seen.well_since_ns is None else clock_ns - seen.well_since_ns
        wait_ns = min(self._config.return_after_ns << min(seen.falls - 1, 32), self._config.return_after_max_ns)
        if seen.falls == 1 and not seen.was_gone and seen.has_answered:
            wait_ns = 0
        detail = f"{gateway_id}: {well_ns} of {wait_ns} ns"
        self._expect("who returns is watched, but for one that was silent once", well_ns >= wait_ns, detail)

    def _note_frozen(self, reason: str, clock_ns: int) -> None:
        if not reason and clock_ns - self._mind.frozen_since_ns >= self._config.freeze_max_ns:
            self._mind.is_loss_believed = True
        if reason and not self._mind.frozen:
            self._mind.frozen_since_ns = clock_ns
        self._mind.frozen = reason

    def _has_lost_most(self, clock_ns: int) -> bool:
        """True if more gateways are missing than connected; missing are those lost within `freeze_window` and not known
        to be gone."""
        lost = [
            seen
            for seen in self._mind.seen.values()
            if seen.lost_ns is not None and clock_ns - seen.lost_ns < self._config.freeze_window_ns
        ]
        missing = [seen for seen in lost if seen.condition is not Condition.UNKNOWN and not seen.is_gone]
        heard = sum(seen.is_connected for seen in self._mind.seen.values())
        return len(self._mind.seen) > 1 and len(missing) > heard  # a lone gateway cannot be compared with others

    def _is_gone(self, seen: _Seen) -> bool:
        said = list(self._witnesses_of(seen))
        is_refused = seen.was_refused and seen.failures >= self._config.probe_failures_min
        return is_refused and 2 * sum(each.is_broken for each in said) > len(said)

    def _witnesses_of(self, seen: _Seen) -> Iterable[HeardPeer]:
        return (
            said
            for peer, said in seen.said_by.items()
            if peer in self._mind.seen and self._mind.seen[peer].is_connected
        )

    def _heard_lately(self, said: HeardPeer, clock_ns: int) -> bool:
        is_recent = said.heard_ns is not None and clock_ns - said.heard_ns < self._config.silence_ns
        return is_recent and not said.is_broken

    def _check_owners(self, kept: ordered.KeepOwners, clock_ns: int) -> None:
        moved: dict[GatewayId, set[ReplicaId]] = {}
        for replica_id, owner in kept.owners:
            before = self._mind.owners.get(replica_id)
            home = self._homes[replica_id]
            self._expect("nothing is assigned against a policy", self._may_have(home, owner), f"{replica_id}: {owner}")
            condition = self._mind.seen[owner].condition
            is_due = condition in _LIVES or (condition is Condition.ALONE and owner == home)
            self._expect("who is watched is given only its own, and only if alone", is_due, f"{replica_id}: {owner}")
            is_offered = owner == home or not self._has_refused(owner, replica_id, clock_ns)
            self._expect(
                "what a gateway left out is not soon offered to it again", is_offered, f"{replica_id}: {owner}"
            )
            if before is None or not self._may_have(home, before) or before not in self._mind.seen:
                continue
            self._expect("nothing moves while frozen", not self._mind.frozen, f"{replica_id} from {before} to {owner}")
            is_served = before == home or not self._has_refused(before, replica_id, clock_ns)
            if is_served and self._mind.seen[before].condition in (*_LIVES, Condition.ALONE):
                moved.setdefault(home, set()).add(replica_id)
        for home, replicas in moved.items():
            self._check_step(home, replicas, clock_ns)
        for orphan in kept.orphans:
            before = self._mind.owners.get(orphan)
            keeps = before is not None and before in self._mind.seen and self._may_have(self._homes[orphan], before)
            self._expect("nothing moves while frozen", not (self._mind.frozen and keeps), f"{orphan} from {before}")
            self._mind.owners.pop(orphan, None)
        self._mind.owners |= dict(kept.owners)
        for pool in self._pools:
            owners = {self._mind.owners.get(each) for each in pool}
            self._expect("a pool's workers have one owner", len(owners) == 1, f"{sorted(pool)}: {owners}")

    def _is_alone(self, gateway_id: GatewayId) -> bool:
        """True if clients of the gateway's region may be sent to none that lives."""
        place = self._mind.gateways[gateway_id].place
        area = Area(place.region, place.jurisdiction, (), ())
        lives = [each for each, seen in self._mind.seen.items() if seen.condition in _LIVES]
        reached = [each for each in lives if self._mind.gateways[each].addresses]
        return not any(self._may_be_sent(area, each) for each in reached)

    def _has_refused(self, gateway_id: GatewayId, replica_id: ReplicaId, clock_ns: int) -> bool:
        since_ns = self._mind.refused_ns.get((gateway_id, replica_id))
        return since_ns is not None and clock_ns - since_ns < self._config.left_out_retry_ns

    def _check_step(self, home: GatewayId, replicas: set[ReplicaId], clock_ns: int) -> None:
        """Check that replicas that move without need do so in steps: at most `step_share` of a home's replicas per
        `step`, of which the last may be a whole pool."""
        steps = self._mind.steps.setdefault(home, deque())
        whole = max((len(pool) for pool in self._pools if pool <= replicas), default=1)
        steps.append((clock_ns, len(replicas) - whole + 1))
        while clock_ns - steps[0][0] >= self._config.step_ns:
            steps.popleft()
        owned = sum(each == home for each in self._homes.values())
        limit = max(1, ceil(self._config.step_share * owned))
        moved = sum(each for _, each in steps)
        self._expect("what moves without need moves in steps", moved <= limit, f"{home}: {moved} of {owned} at once")

    def _may_have(self, home: GatewayId, owner: GatewayId) -> bool:
        if home == owner:
            return True
        if home not in self._mind.gateways or owner not in self._mind.gateways:
            return False
        there = self._mind.gateways[home].place
        policy = self._mind.policies.get(there.region)
        if policy is None or policy.closed_reason:
            return False
        place = self._mind.gateways[owner].place
        return place == there or names_place(policy.accept, place)

    def _check_records(self, tree: RecordTree) -> None:
        lives = {gateway_id for gateway_id, seen in self._mind.seen.items() if seen.condition in _LIVES}
        self._expect("nothing at all is never published", bool(tree.anywhere), f"version {tree.version}")
        for area in tree.areas:
            allowed = self._allowed(area, lives)
            there = set(area.gateways)
            detail = f"{area.region} of version {tree.version}: {sorted(there)}"
            self._expect(
                "no name is without an answer while an allowed gateway lives", bool(there or not allowed), detail
            )
            self._expect("no name leads to a gateway that is down or not allowed", there <= allowed, detail)
            self._check_further(area, detail)
        if lives:
            known = {address for each in lives for address in self._mind.gateways[each].addresses}
        else:
            known = set(self._mind.anywhere)
        unknown = set(tree.anywhere) - known
        self._expect("clients from anywhere are led to gateways that live, or as before", not unknown, f"{unknown}")
        self._mind.areas, self._mind.anywhere = {area.region: area for area in tree.areas}, tree.anywhere

    def _allowed(self, area: Area, lives: set[GatewayId]) -> set[GatewayId]:
        """Gateways that may be named to clients of the area: those that live, with addresses where any has some, and
        else those of the region that are back. Where none lives, what was named last, as far as it is registered."""
        may_be_named = {each for each in lives if self._may_be_sent(area, each)}
        reached = {each for each in may_be_named if self._mind.gateways[each].addresses}
        if found := reached or self._back_in(area.region) or may_be_named:
            return found
        last = self._mind.areas.get(area.region)
        named = () if lives or last is None else last.gateways
        return {each for each in named if each in self._mind.gateways and self._may_be_sent(area, each)}

    def _check_named(self, gateway_id: GatewayId) -> None:
        """Check that a gateway that was called alone, or another one that is alone, is named to clients of its region,
        unless the controller has not published anything yet."""
        region = self._mind.gateways[gateway_id].place.region
        area = self._mind.areas.get(region)
        is_named = area is None or bool(set(area.gateways) & self._back_in(region))
        self._expect("who is alone is named to clients of its region", is_named, gateway_id)

    def _back_in(self, region: RegionName) -> set[GatewayId]:
        """Gateways of the region that have answered since they returned, and are watched."""
        return {
            each
            for each, seen in self._mind.seen.items()
            if seen.condition is Condition.ALONE or (seen.condition is Condition.RETURNING and seen.has_answered)
            if self._mind.gateways[each].place.region == region
        }

    def _may_be_sent(self, area: Area, to: GatewayId) -> bool:
        """True if a client of this area may be sent to the gateway, by its region's policy and the closed
        jurisdictions."""
        place = self._mind.gateways[to].place
        if place.region == area.region:
            return True
        if area.jurisdiction in self._config.closed_jurisdictions and place.jurisdiction != area.jurisdiction:
            return False
        policy = self._mind.policies.get(area.region)
        return policy is not None and names_place(policy.process, place)

    def _check_further(self, area: Area, detail: str) -> None:
        """Check the gateways that an answer names beyond those of its nearest region."""
        regions = [self._mind.gateways[each].place.region for each in area.gateways]
        is_own_first = area.region not in regions or regions[0] == area.region
        self._expect("an answer names the client's own region first", is_own_first, detail)
        further = [each for each, region in zip(area.gateways, regions, strict=True) if region != regions[0]]
        most = self._config.further_gateways
        self._expect("an answer names no more further gateways than are wanted", len(further) <= most, detail)
        for each in further:
            is_alike = self._is_treated_alike(area.region, each)
            self._expect("requests get no further by a further gateway, nor show more in its logs", is_alike, detail)

    def _is_treated_alike(self, region: RegionName, to: GatewayId) -> bool:
        """True if every tenant's requests from this region may be processed at the gateway, by its own policy as well
        as theirs, and it may neither send them on to a place nor log a detail that their own region does not
        permit."""
        place = self._mind.gateways[to].place
        home, there = self._mind.policies.get(region), self._mind.policies.get(place.region)
        if home is None or there is None or home.closed_reason or there.closed_reason:
            return False
        for detail in ("tenant", "client_address", "session_key"):
            if getattr(there.logging, detail) and not getattr(home.logging, detail):
                return False
        for tenant in {*home.tenants, *there.tenants, None}:
            at_home, elsewhere = (
                policy.process if tenant is None or tenant not in policy.tenants else policy.tenants[tenant].process
                for policy in (home, there)
            )
            reached = {each.place for each in self._mind.gateways.values() if names_place(elsewhere, each.place)}
            if place not in reached or not all(names_place(at_home, each) for each in reached):
                return False
        return True

    # End of the run

    def expect_home(self, now_ns: int, serving: Mapping[GatewayId, tuple[ReplicaId, ...]]) -> None:
        """Check that every replica is home, after everything has healed for long enough. Raises Broken."""
        self._now_ns, self._mind = now_ns, self._leader
        away = {each: owner for each, owner in self._mind.owners.items() if owner != self._homes[each]}
        self._expect("everything comes home", not away, str(away))
        self._expect(
            "each replica has an owner", len(self._mind.owners) == len(self._homes), str(len(self._mind.owners))
        )
        self._expect("no controller stays frozen", not self._mind.frozen, self._mind.frozen)
        for gateway_id, replicas in serving.items():
            own = {each for each, home in self._homes.items() if home == gateway_id}
            self._expect("everything is served at home", set(replicas) == own, f"{gateway_id} serves {replicas}")

    def _expect(self, what: str, holds: bool, detail: str) -> None:
        if not holds:
            raise Broken(self._now_ns, what, detail)


def _lets_all_be(policy: ResidencyPolicy | None, place: Place) -> bool:
    """Return whether the policy of a region lets requests of each of its tenants be processed at a place."""
    if policy is None:
        return False
    rules = [policy.process, *(each.process for each in policy.tenants.values())]
    return place == policy.place or (not policy.closed_reason and all(names_place(each, place) for each in rules))


class _Seat:
    """Observer that attributes steps to one controller."""

    def __init__(self, watch: ControlWatch, controller: str) -> None:
        self._watch = watch
        self._controller = controller
        self.on_store_taken = watch.on_store_taken
        self.on_store_written = watch.on_store_written
        self.on_acting = watch.on_acting
        self.on_snapshot_taken = watch.on_snapshot_taken
        self.on_newer_heard = watch.on_newer_heard
        self.on_struck = watch.on_struck

    def on_controller_start(self, now_ns: int, term: int) -> None:
        self._watch.began(self._controller, now_ns, term)

    def on_controller_step(self, now_ns: int, clock_ns: int, event: News, effects: list[Order]) -> None:
        self._watch.spoke(self._controller)
        self._watch.on_controller_step(now_ns, clock_ns, event, effects)

    def on_snapshot_sent(
        self, now_ns: int, snapshot: ControlSnapshot, policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        self._watch.spoke(self._controller)
        self._watch.on_snapshot_sent(now_ns, snapshot, policies)

    def on_history_sent(
        self, now_ns: int, gateway_id: GatewayId, history: PoolHistory, policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        self._watch.spoke(self._controller)
        self._watch.on_history_sent(now_ns, gateway_id, history, policies)


_LIVES = (Condition.UP, Condition.UNKNOWN)
