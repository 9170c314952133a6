"""Scaling of replicas during a run: the production `Scaler` decides the number of replicas of each region, and this
autoscaler follows it, with the time that a replica takes to start.

A replica that is to stop gets no new requests, finishes those it has, and then ends. It is paid for from its order to
its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.core.events import Event
from gateway.core.features.scaling.demand import would_have_run
from gateway.core.features.scaling.sampling import accepts_of, samples_of, ways_of
from gateway.core.features.scaling.scaler import Scaler
from gateway.core.features.scaling.vocabulary import Heard, PoolKey, Want
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import effects as ordered
from gateway.core.kernel import events
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import DEFAULT_POOL, GatewayId, RegionName, ReplicaId, ReplicaSpec, RequestId
from loadgen.figures import Figures
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.engines import SimReplica
from loadgen.simulator.gateways import SimGateway
from loadgen.simulator.network import Network
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.scaling_sections import ScalingMode, ScalingSection

_SECOND_NS = 1_000_000_000
_HOUR_NS = 3600 * _SECOND_NS
_MINUTE_NS = 60 * _SECOND_NS
_MINUTES_A_DAY = 24 * 60
_IDLE_LOOK_NS = _SECOND_NS
"""Interval at which a stopping replica is checked for remaining requests."""
_STALE_LOOKS = 3


@dataclass(slots=True, eq=False)
class _Replica:
    """One possible replica: it is off, starting, serving or stopping."""

    spec: ReplicaSpec
    engine: SimReplica
    ordered_ns: int | None = None
    """Time since which it is paid for; None: it is off."""
    serves: bool = False
    turn: int = 0
    """Number of orders to start or stop; actions due for an earlier order are dropped."""


@dataclass(slots=True, eq=False)
class _Region:
    gateway: SimGateway
    scaler: Scaler
    key: PoolKey
    replicas: list[_Replica]
    lasting: tuple[ReplicaSpec, ...]
    """Replicas that run all the time: adopted ones and those of pools."""
    paid_ns: int = 0
    """Paid time of replicas that are off again."""
    starts: int = 0
    stops: int = 0
    wanted: list[tuple[int, int]] = field(default_factory=list)
    """Changes of the wanted number of replicas: time and number."""

    @property
    def name(self) -> RegionName:
        return self.gateway.region

    @property
    def ordered(self) -> list[_Replica]:
        """Replicas that serve or are starting."""
        return [each for each in self.replicas if each.serves or (each.ordered_ns is not None and each.turn % 2)]


class Autoscaler:
    """Autoscaler of one run."""

    def __init__(
        self,
        section: ScalingSection,
        mode: ScalingMode,
        agenda: Agenda,
        network: Network,
        note: Callable[[int, str], object],
    ) -> None:
        self._section = section
        self._mode = mode
        self._agenda = agenda
        self._network = network
        self._note = note
        self._regions: dict[RegionName, _Region] = {}
        self._began_ns: dict[tuple[GatewayId, RequestId], int | None] = {}
        """Clients' requests by ingress gateway, with the time at which each first ran."""

    # Observation of gateways

    def on_start(self, spec: GatewaySpec, _: ResidencyPolicy, __: GatewayCore) -> None:
        """Drop the requests of a gateway that begins a new life."""
        for key in [each for each in self._began_ns if each[0] == spec.gateway_id]:
            del self._began_ns[key]

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, events.RequestArrived):
            self._began_ns[gateway_id, event.profile.request_id] = None
        for effect in effects:
            if isinstance(effect, ordered.StartLeg):
                key = gateway_id, effect.request_id
                if self._began_ns.get(key, 0) is None:
                    self._began_ns[key] = now_ns
            elif isinstance(effect, ordered.EndRequest):
                self._ended(gateway_id, effect, now_ns)

    def _ended(self, gateway_id: GatewayId, end: ordered.EndRequest, now_ns: int) -> None:
        if (gateway_id, end.request_id) not in self._began_ns:
            return
        began_ns = self._began_ns.pop((gateway_id, end.request_id))
        region = next(each for each in self._regions.values() if each.gateway.gateway_id == gateway_id)
        if began_ns is not None:
            region.scaler.demands[region.key].ended(now_ns - began_ns)
        elif would_have_run(end.outcome):
            region.scaler.demands[region.key].ended(None)

    # Scaling

    def manage(self, gateway: SimGateway, engines: dict[ReplicaId, SimReplica], model: str) -> None:
        """Manage a gateway's replicas at home outside pools, before it starts: all but the first `begin` of them are
        off."""
        own = [spec for spec in gateway.spec.replicas if _is_scaled(spec, gateway.region)]
        lasting = tuple(spec for spec in gateway.spec.replicas if not _is_scaled(spec, gateway.region))
        replicas = [_Replica(spec, engines[spec.replica_id]) for spec in own]
        pool = self._section.pool(model, len(replicas))
        scaler = Scaler(
            gateway.gateway_id,
            gateway.region,
            self._section.settings(self._mode),
            [pool],
            stale_ns=_STALE_LOOKS * self._section.interval,
        )
        self._regions[gateway.region] = _Region(gateway, scaler, pool.key, replicas, lasting)
        for number, each in enumerate(replicas):
            if number < self._section.begin:
                each.ordered_ns, each.serves, each.turn = 0, True, 1
            else:
                each.engine.crash()

    def start(self) -> None:
        """Begin to scale, once the gateways have started. Regions decide one after another."""
        for number, region in enumerate(self._regions.values()):
            self._assign(region)
            after_ns = self._section.interval * (number + 1) // len(self._regions)
            self._agenda.after(after_ns, self._look, region)

    def figures(self, until_ns: int) -> Figures:
        """Replica-hours from the beginning to `until_ns`, and the numbers of starts and stops."""
        regions = {region.name: self._figures_of(region, until_ns) for region in self._regions.values()}
        return {
            "mode": str(self._mode),
            "replica_hours": round(sum(each["replica_hours"] for each in regions.values()), 3),
            "actions": sum(each["starts"] + each["stops"] for each in regions.values()),
            "regions": regions,
        }

    def _figures_of(self, region: _Region, until_ns: int) -> Figures:
        still_ns = sum(max(0, until_ns - each.ordered_ns) for each in region.replicas if each.ordered_ns is not None)
        return {
            "replica_hours": round((region.paid_ns + still_ns) / _HOUR_NS, 3),
            "starts": region.starts,
            "stops": region.stops,
            "wanted": [[at_ns / _SECOND_NS, count] for at_ns, count in region.wanted],
        }

    def _look(self, region: _Region) -> None:
        now_ns = self._agenda.now_ns
        self._agenda.after(self._section.interval, self._look, region)
        core = region.gateway.core
        if core is None:
            return
        for other in self._regions.values():
            if other is not region and not self._network.is_cut(other.name, region.name):
                region.scaler.hear(Heard(other.gateway.gateway_id, other.name, other.scaler.report, now_ns))
        (want,) = region.scaler.look(
            now_ns,
            samples_of(core, [region.key]),
            minute_of_day=now_ns // _MINUTE_NS % _MINUTES_A_DAY,
            ways=ways_of(core),
            accepts=accepts_of(core),
        )
        self._follow(region, want)

    def _follow(self, region: _Region, want: Want) -> None:
        if not region.wanted or region.wanted[-1][1] != want.wanted:
            region.wanted.append((self._agenda.now_ns, want.wanted))
            self._note(self._agenda.now_ns, f"scaling {region.name} {want.wanted} {want.reason}")
        there = region.ordered
        for each in [each for each in region.replicas if each.ordered_ns is None][: max(0, want.wanted - len(there))]:
            self._order(region, each)
        surplus = len(there) - want.wanted
        if surplus > 0:
            for each in sorted(there, key=_last_to_be_missed)[:surplus]:
                self._let_go(region, each)

    def _order(self, region: _Region, replica: _Replica) -> None:
        region.starts += 1
        replica.turn += 1
        replica.ordered_ns = self._agenda.now_ns
        self._agenda.after(self._section.start_delay, self._is_there, region, replica, replica.turn)

    def _is_there(self, region: _Region, replica: _Replica, turn: int) -> None:
        if turn == replica.turn:
            replica.engine.restart()
            replica.serves = True
            self._assign(region)

    def _let_go(self, region: _Region, replica: _Replica) -> None:
        region.stops += 1
        replica.turn += 1
        if replica.serves:
            replica.serves = False
            self._assign(region)
            self._agenda.after(_IDLE_LOOK_NS, self._end, region, replica)
        else:
            self._is_off(region, replica)

    def _end(self, region: _Region, replica: _Replica) -> None:
        if replica.engine.outstanding:
            self._agenda.after(_IDLE_LOOK_NS, self._end, region, replica)
            return
        replica.engine.crash()
        self._is_off(region, replica)

    def _is_off(self, region: _Region, replica: _Replica) -> None:
        assert replica.ordered_ns is not None, "it was on"
        region.paid_ns += self._agenda.now_ns - replica.ordered_ns
        replica.ordered_ns = None

    def _assign(self, region: _Region) -> None:
        serving = tuple(each.spec for each in region.replicas if each.serves)
        region.gateway.assign((*serving, *region.lasting))


def _is_scaled(spec: ReplicaSpec, home: RegionName) -> bool:
    return spec.pool == DEFAULT_POOL and spec.place.region == home


def _last_to_be_missed(replica: _Replica) -> tuple[bool, int]:
    """Sort key of replicas to stop: those that are still starting first, then those with the fewest requests."""
    return replica.serves, replica.engine.outstanding
