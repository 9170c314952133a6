"""Timeline of each gateway failure: declared down, replicas reassigned, DNS changed, replicas serving again, replicas
back home. It only observes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.effects import Effect as Order
from controller.core.effects import KeepOwners, PublishRecords, TellCondition
from controller.core.events import Event as News
from controller.core.events import StateRestored
from controller.core.vocabulary import Condition
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import events
from gateway.core.kernel.effects import Effect, StartLeg
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, RegionName, ReplicaId, RequestId, TargetKind
from loadgen.figures import Figures
from loadgen.simulator.observers import GatewaySpec
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import ControlSnapshot
from mesh.naming.tree import RecordTree

_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class Failover:
    """One failure of a gateway. A time is None if that stage was not reached."""

    gateway_id: GatewayId
    struck_ns: int
    down_ns: int | None = None
    reassigned_ns: int | None = None
    """Time at which the controller had taken all of its replicas away, to assign them to other gateways."""
    renamed_ns: int | None = None
    """Time at which the DNS records stopped naming the gateway."""
    last_forward_ns: int | None = None
    """Time of the last forward to it from a peer before it returned."""
    adopted_ns: int | None = None
    """Time of the first token from one of its replicas at an adopting gateway."""
    returned_ns: int | None = None
    """Time at which its process ran again."""
    home_ns: int | None = None
    """Time at which the controller had assigned all of its replicas back to it."""

    def as_figures(self) -> Figures:
        """JSON-able figures: seconds from the failure to each stage."""
        after = {name: getattr(self, f"{name}_ns") for name in _STAGES}
        return {"gateway": self.gateway_id, "at_s": self.struck_ns / _SECOND_NS} | {
            f"{name}_s": None if at_ns is None else round((at_ns - self.struck_ns) / _SECOND_NS, 3)
            for name, at_ns in after.items()
        }


_STAGES = ("down", "reassigned", "renamed", "last_forward", "adopted", "returned", "home")


class Failovers:
    """Failovers of one run."""

    def __init__(self, homes: Mapping[ReplicaId, GatewayId]) -> None:
        self.found: list[Failover] = []
        self._homes = homes
        self._open: dict[GatewayId, Failover] = {}
        """Latest failover of each gateway, until all of its replicas are home."""
        self._owners: dict[ReplicaId, GatewayId] = {}
        self._adopted: dict[tuple[GatewayId, RequestId, int, int], GatewayId] = {}
        """Home gateways of the adopted replicas with a leg in progress, by gateway, request, attempt and leg."""

    def on_struck(self, now_ns: int, gateway_id: GatewayId) -> None:
        failover = Failover(gateway_id, now_ns)
        self.found.append(failover)
        self._open[gateway_id] = failover

    # The controller

    def on_controller_start(self, _now_ns: int, _term: int) -> None:
        self._owners = {}

    def on_controller_step(self, now_ns: int, _clock_ns: int, event: News, effects: list[Order]) -> None:
        if isinstance(event, StateRestored):
            self._owners = dict(event.owners)
        for effect in effects:
            if isinstance(effect, TellCondition):
                self._condition_told(effect, now_ns)
            elif isinstance(effect, KeepOwners):
                self._owners_kept(effect, now_ns)
            elif isinstance(effect, PublishRecords):
                self._records_published(effect.tree, now_ns)

    def on_store_taken(self, _now_ns: int, _process: str) -> None:
        """Ignored: the store's takeover moves no replica."""

    def on_store_written(self, _now_ns: int, _process: str) -> None:
        """Ignored: the content was decided before."""

    def on_acting(self, _now_ns: int, _process: str) -> None:
        """Ignored: the actions follow earlier decisions."""

    def on_snapshot_sent(
        self, now_ns: int, snapshot: ControlSnapshot, _policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        """Ignored: the time of the decision counts."""

    def on_history_sent(
        self, now_ns: int, gateway_id: GatewayId, history: PoolHistory, _policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        """Ignored: replicas count, not what is known of them."""

    def on_snapshot_taken(self, now_ns: int, gateway_id: GatewayId, version: ControlVersion) -> None:
        """Ignored: the gateway's later steps count."""

    def on_newer_heard(self, now_ns: int, gateway_id: GatewayId, peer: GatewayId, version: ControlVersion) -> None:
        """Ignored: the gateway's later steps count."""

    def _condition_told(self, told: TellCondition, now_ns: int) -> None:
        failover = self._open.get(told.gateway_id)
        if failover is not None and told.condition is Condition.DOWN and failover.down_ns is None:
            failover.down_ns = now_ns

    def _owners_kept(self, kept: KeepOwners, now_ns: int) -> None:
        self._owners |= dict(kept.owners)
        for orphan in kept.orphans:
            self._owners.pop(orphan, None)
        for gateway_id, failover in list(self._open.items()):
            own = [self._owners.get(each) for each, home in self._homes.items() if home == gateway_id]
            if failover.down_ns is not None and failover.reassigned_ns is None and gateway_id not in own:
                failover.reassigned_ns = now_ns
            if failover.reassigned_ns is not None and all(each == gateway_id for each in own):
                failover.home_ns = now_ns
                del self._open[gateway_id]

    def _records_published(self, tree: RecordTree, now_ns: int) -> None:
        named = {each for area in tree.areas for each in area.gateways}
        for gateway_id, failover in self._open.items():
            if failover.renamed_ns is None and gateway_id not in named:
                failover.renamed_ns = now_ns

    # Gateways

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        """Ignored: the gateway's first step marks its return."""

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        returned = self._open.get(gateway_id)
        if returned is not None and returned.returned_ns is None:
            returned.returned_ns = now_ns
        if isinstance(event, events.FirstToken):
            home = self._adopted.get((gateway_id, event.request_id, event.attempt, event.leg))
            failover = None if home is None else self._open.get(home)
            if failover is not None and failover.adopted_ns is None:
                failover.adopted_ns = now_ns
        elif isinstance(event, events.LegEnded):
            self._adopted.pop((gateway_id, event.request_id, event.attempt, event.leg), None)
        for effect in effects:
            if isinstance(effect, StartLeg):
                self._leg_started(gateway_id, effect, now_ns)

    def _leg_started(self, gateway_id: GatewayId, leg: StartLeg, now_ns: int) -> None:
        if leg.target.kind is TargetKind.PEER:
            failover = self._open.get(GatewayId(leg.target.id))
            if failover is not None and failover.returned_ns is None:
                failover.last_forward_ns = now_ns
            return
        home = self._homes[ReplicaId(leg.target.id)]
        if home != gateway_id and self._open:
            self._adopted[gateway_id, leg.request_id, leg.attempt, leg.leg] = home
