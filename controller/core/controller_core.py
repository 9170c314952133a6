"""The controller's decision maker: events in, effects out. It never waits, reads a clock, or does I/O.

Read `handle` first. It computes which gateway should own each replica and what the mesh's DNS name should resolve to,
and emits only differences from what it emitted last. It fails over a gateway's replicas only once that gateway is
certainly down, and moves none while it is frozen: by an operator's order, or since the controller itself may be cut
off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from controller.core.assignment import Assigner
from controller.core.effects import (
    Assign,
    Effect,
    KeepOwners,
    KeepPolicy,
    PublishRecords,
    StartRecovery,
    TellCondition,
    TellFrozen,
    TellOrphans,
)
from controller.core.events import (
    ControllerConfigApplied,
    ControllerTimePassed,
    Event,
    FreezeLifted,
    FreezeOrdered,
    GatewayConnected,
    GatewayDisconnected,
    GatewayProbed,
    GrantsLeftOut,
    NarrowingApplied,
    PeersHeard,
    PolicyAccepted,
    RegistryApplied,
    StateRestored,
)
from controller.core.health import GatewayHealth
from controller.core.records import addresses_of, anywhere_of, areas_of, with_last
from controller.core.state import HOLDS, MeshState
from controller.core.vocabulary import Condition, GrantRefusal
from gateway.core.kernel.narrowing import allowed_by_all
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Place, RegionName, ReplicaId
from mesh.naming.tree import Area, RecordTree


class ControllerCore(MeshState):
    """Assigns the replicas of one mesh and decides what its DNS name resolves to."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[ReplicaId, GatewayId] = {}
        self.version = 0
        """Version of the assignment; it rises with each change."""
        self.tree: RecordTree | None = None
        self.orphans: dict[GatewayId, tuple[int, str]] = {}
        """Count of a home's replicas that no gateway may serve, and the reason, by home."""
        self._assigner = Assigner(self)
        self._is_frozen_by_order = False
        self._is_loss_believed = False
        """The gateways that are missing count as really gone: an operator lifted the freeze, or it lasted
        `freeze_max_ns`."""
        self._frozen_since_ns = 0
        self._restored_down: frozenset[GatewayId] = frozenset()
        """Gateways that were down in the restored state, until the next RegistryApplied."""
        self._told: dict[GatewayId, tuple[ReplicaId, ...]] = {}
        """Replicas last sent to each gateway as its assignment."""
        self._shares: dict[GatewayId, tuple[ReplicaId, ...]] | None = None
        """Replicas that each gateway owns, sorted; None until they are computed."""
        self._retry_ns: int | None = None
        """Time before which no refusal ends; None without refusals."""
        self._is_settled = True
        """No event since the last assignment changes ownership or records."""
        self._heard_since_ns: int | None = None
        """Time since which any gateway has been connected; None while none is."""
        self._has_new_distance = False
        """A distance between two gateways was measured for the first time since the records were last made."""
        self._further: dict[RegionName, set[RegionName]] = {}
        """Regions of the gateways that the records name last, by the clients' region."""
        self._now_ns: int | None = None
        self._effects: list[Effect] = []

    # Entry points

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Apply one event and return the effects to perform, in order. `now_ns` never goes backwards."""
        assert self._now_ns is None or now_ns >= self._now_ns, "time went backwards"
        self._now_ns = now_ns
        self._effects = []
        self._take_in(event, now_ns)
        heard = self.heard()
        if not heard:
            self._heard_since_ns = None
        elif self._heard_since_ns is None:
            self._heard_since_ns = now_ns
        self._look_at_frozen(heard, now_ns)
        self._look_at_gateways(heard, now_ns)
        self._look_at_refusals(now_ns)
        step_ns = self._assigner.next_step_ns()
        if not self._is_settled or (step_ns is not None and now_ns >= step_ns):
            self._is_settled = True
            areas = self._areas()
            self._rely_on_those_named(areas)
            self._assign(now_ns)
            self._publish(areas)
        elif self._has_new_distance:
            self._publish(self._areas())
        return self._effects

    def next_wakeup_ns(self) -> int | None:
        """Time at which ControllerTimePassed is wanted, if no other event comes first; None: not at all."""
        heard = self.heard()
        times = [self._turn_ns(gateway_id, health, heard) for gateway_id, health in self.health.items()]
        if self.frozen and not self._is_frozen_by_order:
            times.append(self._frozen_since_ns + self.config.freeze_max_ns)
        times.append(self._assigner.next_step_ns())
        times.append(self._retry_ns)
        due = [each for each in times if each is not None and (self._now_ns is None or each > self._now_ns)]
        return min(due, default=None)

    def _take_in(self, event: Event, now_ns: int) -> None:
        match event:
            case ControllerConfigApplied():
                self.config = event.config
                self._is_settled = not self.gateways
            case RegistryApplied():
                self._register(event, now_ns)
            case StateRestored():
                self._restore(event)
            case NarrowingApplied():
                self.narrowings = {policy.place.region: policy for policy in event.policies}
                self._is_settled = not self.gateways
            case GatewayConnected():
                self._connected(event, now_ns)
            case PolicyAccepted():
                self._policy_accepted(event.gateway_id, event.policy)
            case GatewayDisconnected():
                if (health := self.health.get(event.gateway_id)) is not None:
                    health.disconnect(event.detail, now_ns)
            case GatewayProbed():
                if (health := self.health.get(event.gateway_id)) is not None:
                    is_first_answer = event.healthy and not health.has_answered
                    self._is_settled &= not (is_first_answer and health.condition is Condition.RETURNING)
                    health.probe(event.healthy, event.detail, now_ns, was_refused=event.was_refused)
            case PeersHeard():
                self._peers_heard(event, now_ns)
            case GrantsLeftOut():
                self._grants_left_out(event, now_ns)
            case FreezeOrdered():
                self._is_frozen_by_order = True
                self._freeze(event.reason, now_ns)
            case FreezeLifted():
                self._is_frozen_by_order = False
                self._is_loss_believed = True
                self._thaw()
            case ControllerTimePassed():
                pass
            case _ as never:
                assert_never(never)

    # Incoming events

    def _restore(self, event: StateRestored) -> None:
        assert not self.gateways, "stored state is read before any gateway is registered"
        self.version, self.owners = event.version, dict(event.owners)
        self.policies = {policy.place.region: policy for policy in event.policies}
        self._restored_down = frozenset(event.down)

    def _register(self, event: RegistryApplied, now_ns: int) -> None:
        self._forget_refusals(event)
        before = self.gateways
        self.gateways = {each.gateway_id: each for each in event.gateways}
        self.replicas = {each.replica_id: each for each in event.replicas}
        self._shares = None
        for gone in self.health.keys() - self.gateways.keys():
            del self.health[gone]
            self._told.pop(gone, None)
            self._assigner.forget(gone)
            self.geography.forget(gone)
            self.reported.pop(gone, None)
            self.told_ns.pop(gone, None)
            for health in self.health.values():
                health.said_by.pop(gone, None)
        for gateway_id in self.gateways:
            if gateway_id not in self.health:
                self.health[gateway_id] = GatewayHealth(now_ns)
                if gateway_id in self._restored_down:
                    self.health[gateway_id].restore_down()
        self._restored_down = frozenset()
        changed = [each for name, each in before.items() if self.gateways.get(name) != each]
        for place in dict.fromkeys(each.place for each in changed):
            self._put_in_force(place)
        self._is_settled = False

    def _connected(self, event: GatewayConnected, now_ns: int) -> None:
        health = self.health.get(event.gateway_id)
        if health is None:
            return
        health.connect(now_ns)
        self._policy_accepted(event.gateway_id, event.policy)
        self._told.pop(event.gateway_id, None)  # sent again in any case: the gateway may have lost it
        self.refusals.pop(event.gateway_id, None)  # another process, with another config
        self._is_settled = False

    def _policy_accepted(self, gateway_id: GatewayId, policy: ResidencyPolicy) -> None:
        """Accept the policy that a gateway reports for its own region; a policy of any other place is ignored."""
        entry = self.gateways.get(gateway_id)
        if entry is not None and policy.place == entry.place:
            self.reported[gateway_id] = policy
            self._put_in_force(entry.place)

    def _put_in_force(self, place: Place) -> None:
        """Put in force what all policies allow that gateways at the place have reported: they differ while a file is
        rolled out. What was in force before counts until each has reported."""
        known = self.policies.get(place.region)
        own = sorted(each.gateway_id for each in self.gateways.values() if each.place == place)
        said = [policy for each in own if (policy := self.reported.get(each)) is not None and policy.place == place]
        if not said:
            return
        is_awaited = len(said) < sum(self.gateways[each].is_announced for each in own)
        if known is not None and known.place == place and is_awaited:
            said.append(known)
        in_force = allowed_by_all(said)
        if in_force != known:
            self.policies[place.region] = in_force
            self._effects.append(KeepPolicy(in_force))
            self._is_settled = False

    def _peers_heard(self, event: PeersHeard, now_ns: int) -> None:
        if event.gateway_id not in self.gateways:
            return
        self.told_ns[event.gateway_id] = now_ns
        for said in event.peers:
            health = self.health.get(said.gateway_id)
            if health is None or said.gateway_id == event.gateway_id:
                continue
            health.said_by[event.gateway_id] = said
            if said.rtt_ns is not None and self.geography.measured(event.gateway_id, said.gateway_id, said.rtt_ns):
                self._choose_further_anew(event.gateway_id, said.gateway_id)

    def _choose_further_anew(self, *measured: GatewayId) -> None:
        """Choose the gateways of clients without one of their own, and the further ones, again once a distance between
        two gateways is measured that was an estimate. A region named by that estimate is not kept for its own sake."""
        self._has_new_distance = True
        one, other = (self.gateways[each].place.region for each in measured)
        for client, further in ((one, other), (other, one)):
            self._further.get(client, set()).discard(further)

    def _grants_left_out(self, event: GrantsLeftOut, now_ns: int) -> None:
        """Remember what a gateway cannot serve of other homes' replicas, so that it is offered to the next one. A
        refusal is renewed as long as the gateway repeats it."""
        if event.gateway_id not in self.gateways:
            return
        until_ns = now_ns + self.config.left_out_retry_ns
        refused = self.refusals.get(event.gateway_id, {})
        for replica_id, reason in event.left_out:
            replica = self.replicas.get(replica_id)
            if replica is None or replica.home == event.gateway_id:
                continue
            known = refused.get(replica_id)
            if known is None or known.reason != reason:
                self._is_settled = False
            refused[replica_id] = GrantRefusal(reason, until_ns)
        if refused:
            self.refusals[event.gateway_id] = refused
            self._retry_ns = until_ns if self._retry_ns is None else min(self._retry_ns, until_ns)

    def _forget_refusals(self, event: RegistryApplied) -> None:
        """Forget refusals of gateways and of replicas that are announced anew, before the registry is replaced."""
        if not self.refusals:
            return
        gateways = {each.gateway_id: each for each in event.gateways}
        same = {each.replica_id for each in event.replicas if self.replicas.get(each.replica_id) == each}
        for gateway_id, refusals in list(self.refusals.items()):
            is_same = self.gateways.get(gateway_id) == gateways.get(gateway_id)
            self._keep_refusals(gateway_id, {each: refusals[each] for each in refusals if is_same and each in same})

    def _look_at_refusals(self, now_ns: int) -> None:
        """Forget refusals after their time, so that what was refused is offered again. Looks through them only once one
        of them may have ended: a refusal is renewed with each report."""
        if self._retry_ns is None or now_ns < self._retry_ns:
            return
        for gateway_id, refused in list(self.refusals.items()):
            left = {each: refusal for each, refusal in refused.items() if refusal.until_ns > now_ns}
            if len(left) < len(refused):
                self._is_settled = False
                self._keep_refusals(gateway_id, left)
        ends = (each.until_ns for refused in self.refusals.values() for each in refused.values())
        self._retry_ns = min(ends, default=None)

    def _keep_refusals(self, gateway_id: GatewayId, left: dict[ReplicaId, GrantRefusal]) -> None:
        if left:
            self.refusals[gateway_id] = left
        else:
            del self.refusals[gateway_id]

    # Gateway health

    def _silent_at_ns(self, gateway_id: GatewayId, health: GatewayHealth, heard: Mapping[GatewayId, int]) -> int | None:
        """Time from which the gateway is to be called down as things stand; None: no such time is known."""
        if health.condition is Condition.UNKNOWN and not self.gateways[gateway_id].is_announced:
            return None
        return health.silent_at_ns(self.config, heard, len(self.health) - 1, self._heard_since_ns)

    def _turn_ns(self, gateway_id: GatewayId, health: GatewayHealth, heard: Mapping[GatewayId, int]) -> int | None:
        """Time at which the gateway's condition changes if no event comes first; None: it does not."""
        back_ns = health.back_at_ns(self.config)
        is_watched = health.condition is not Condition.UP and back_ns is not None
        if health.condition in HOLDS and not is_watched:
            return None if self.frozen else self._silent_at_ns(gateway_id, health, heard)
        return back_ns

    def _look_at_gateways(self, heard: Mapping[GatewayId, int], now_ns: int) -> None:
        for gateway_id, health in self.health.items():
            back_ns = health.back_at_ns(self.config)
            if health.condition is Condition.UP or back_ns is None:
                self._look_for_silence(gateway_id, health, heard, now_ns)
            elif now_ns >= back_ns:
                health.rise(now_ns)
                self._tell_condition(gateway_id, "it answers")
            elif health.condition is Condition.DOWN:
                health.condition = Condition.RETURNING
                self._tell_condition(gateway_id, "it answers again, and is watched for a while")

    def _look_for_silence(
        self, gateway_id: GatewayId, health: GatewayHealth, heard: Mapping[GatewayId, int], now_ns: int
    ) -> None:
        if health.condition is Condition.RETURNING and health.answers_since_ns is None and not health.connected:
            health.condition = Condition.DOWN
            self._tell_condition(gateway_id, health.detail)
            return
        if health.condition not in HOLDS or self.frozen:
            return
        silent_ns = self._silent_at_ns(gateway_id, health, heard)
        if silent_ns is not None and now_ns >= silent_ns:
            health.fall(now_ns, self.config)
            self._tell_condition(gateway_id, health.detail)
            self._effects.append(StartRecovery(gateway_id, health.detail))

    def _tell_condition(self, gateway_id: GatewayId, why: str) -> None:
        self._is_settled = False
        self._effects.append(TellCondition(gateway_id, self.health[gateway_id].condition, why))

    # Freeze

    def _missing(self, now_ns: int) -> list[GatewayId]:
        """Gateways whose stream was lost within `freeze_window_ns` and that are neither unknown nor proven gone. While
        frozen, the window ends where the freeze began, so that none of them drops out of it."""
        seen_ns = self._frozen_since_ns if self.frozen else now_ns
        since_ns = seen_ns - self.config.freeze_window_ns
        return [
            gateway_id
            for gateway_id, health in self.health.items()
            if health.lost_ns is not None
            and health.lost_ns > since_ns
            and health.condition is not Condition.UNKNOWN
            and not health.is_proven_gone
        ]

    def _look_at_frozen(self, heard: Mapping[GatewayId, int], now_ns: int) -> None:
        for health in self.health.values():
            health.look_for_proof(self.config, heard)
        missing = self._missing(now_ns)
        is_most = len(self.health) > 1 and len(missing) > len(heard)
        if not missing:
            self._is_loss_believed = False
        if self._is_frozen_by_order:
            return
        if not self.frozen and is_most and not self._is_loss_believed:
            self._freeze(f"{', '.join(sorted(missing))} are missing at once: it may be us who cannot see", now_ns)
        elif self.frozen and (not is_most or self._is_confirmed(now_ns, heard)):
            self._is_loss_believed = is_most
            self._thaw()

    def _is_confirmed(self, now_ns: int, heard: Mapping[GatewayId, int]) -> bool:
        """Return whether the freeze has lasted `freeze_max_ns` and a gateway is connected. A gateway that a connected
        peer still hears is not called down in any case."""
        return bool(heard) and now_ns >= self._frozen_since_ns + self.config.freeze_max_ns

    def _freeze(self, reason: str, now_ns: int) -> None:
        self.frozen = reason or "by order"
        self._frozen_since_ns = now_ns
        self._effects.append(TellFrozen(self.frozen))

    def _thaw(self) -> None:
        if self.frozen:
            self.frozen = ""
            self._is_settled = False
            self._effects.append(TellFrozen(""))

    # Assignment

    def _assign(self, now_ns: int) -> None:
        wanted = self._assigner.wanted(self.owners, now_ns)
        changed = {each: owner for each, owner in wanted.owners.items() if self.owners.get(each) != owner}
        lost = tuple(sorted(self.owners.keys() - wanted.owners.keys()))
        if changed or lost:
            self.version += 1
            self.owners = wanted.owners
            self._shares = None
            self._effects.append(KeepOwners(self.version, tuple(sorted(changed.items())), lost))
        self._tell_gateways()
        self._tell_orphans(wanted.orphans)

    def _tell_orphans(self, orphans: dict[GatewayId, tuple[int, str]]) -> None:
        for home, (count, why) in orphans.items():
            if self.orphans.get(home) != (count, why):
                self._effects.append(TellOrphans(home, count, why))
        for home in self.orphans.keys() - orphans.keys():
            self._effects.append(TellOrphans(home, 0, ""))
        self.orphans = orphans

    def _tell_gateways(self) -> None:
        """Send its replicas to each connected gateway that was last sent others, or none."""
        if self._shares is None:
            self._shares = self._shared_out()
        for gateway_id, wanted in self._shares.items():
            if self.health[gateway_id].connected and self._told.get(gateway_id) != wanted:
                self._told[gateway_id] = wanted
                self._effects.append(Assign(gateway_id, self.version, wanted))

    def _shared_out(self) -> dict[GatewayId, tuple[ReplicaId, ...]]:
        lists: dict[GatewayId, list[ReplicaId]] = {gateway_id: [] for gateway_id in self.gateways}
        for replica_id, owner in self.owners.items():
            lists[owner].append(replica_id)
        return {gateway_id: tuple(sorted(replicas)) for gateway_id, replicas in lists.items()}

    # DNS records

    def _areas(self) -> tuple[Area, ...]:
        """Areas of the records as things stand."""
        returning = [
            entry
            for gateway_id, entry in self.gateways.items()
            if (health := self.health[gateway_id]).condition is Condition.ALONE
            or (health.condition is Condition.RETURNING and health.has_answered)
        ]
        return areas_of(
            self.gateways.values(),
            self.living(),
            self.effective_policy,
            self.geography,
            self.config,
            returning=returning,
            last_further=self._further,
        )

    def _rely_on_those_named(self, areas: tuple[Area, ...]) -> None:
        """Note which gateways that return are named: they are all that their region's clients have."""
        for gateway_id in sorted({each for area in areas for each in area.gateways}):
            health = self.health[gateway_id]
            if health.condition is Condition.RETURNING:
                health.condition = Condition.ALONE
                self._effects.append(TellCondition(gateway_id, Condition.ALONE, "clients of its region have no other"))

    def _publish(self, areas: tuple[Area, ...]) -> None:
        """Publish the records if they changed. While no gateway lives, the last ones stay but for clients of those that
        are alone, and without what no longer holds of them."""
        self._has_new_distance = False
        if living := self.living():
            self._further = {
                each.region: {self.gateways[name].place.region for name in each.gateways}
                for each in areas
                if each.further
            }
            anywhere = anywhere_of(living, self.config)
        elif self.tree is None or not any(each.gateways for each in areas):
            return
        else:
            areas = with_last(areas, self.tree.areas, self.gateways, self.effective_policy, self.config)
            known = addresses_of(self.gateways.values())
            anywhere = tuple(each for each in self.tree.anywhere if each in known) or self.tree.anywhere
        if self.tree is None or not _says_the_same(self.tree, self.config.ttl_s, areas, anywhere):
            version = 1 if self.tree is None else self.tree.version + 1
            self.tree = RecordTree(version, self.config.ttl_s, areas, anywhere)
            self._effects.append(PublishRecords(self.tree))


def _says_the_same(tree: RecordTree, ttl_s: int, areas: tuple[Area, ...], anywhere: tuple[str, ...]) -> bool:
    return (tree.ttl_s, tree.areas, tree.anywhere) == (ttl_s, areas, anywhere)
