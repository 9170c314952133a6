"""Controller side of a simulated world: the controllers, each gateway's attachment to them, the name that clients know,
and the observers. The world builds it and applies faults to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from controller.core import events as news
from controller.core.effects import Effect as Order
from controller.core.effects import KeepPolicy
from controller.core.events import Event as News
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, PoolName, RegionName, ReplicaId, ReplicaRole
from loadgen.figures import Figures
from loadgen.simulator.attachments import ASK_TIMEOUT_NS, AttachmentEnvironment, ControlTimes, SimAttachment
from loadgen.simulator.callers import SimCaller
from loadgen.simulator.chronicle import Chronicle
from loadgen.simulator.client_requests import ClientRequest
from loadgen.simulator.clients import Call, ClientWorld
from loadgen.simulator.control_checkers import ControlWatch
from loadgen.simulator.controller import SimController
from loadgen.simulator.failovers import Failovers
from loadgen.simulator.faults import CONTROLLER, STANDBY, FaultKind, SimFault
from loadgen.simulator.gateways import SimEnvironment
from loadgen.simulator.naming import Names, ServedZone, SimNameServer
from loadgen.simulator.network import Way
from loadgen.simulator.observers import ControlObserver
from loadgen.simulator.scenario import Scenario
from loadgen.simulator.shared_store import SharedStore
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import ControlSnapshot

_SECOND_NS = 1_000_000_000
_OLDER_BY = 3
STRIKES = frozenset({FaultKind.GATEWAY_CRASH, FaultKind.GATEWAY_SILENT})
"""Faults that end a gateway by themselves."""
_KEEPS_NEWS_AT_ONE = frozenset(
    {
        FaultKind.SNAPSHOT_LOSS,
        FaultKind.SNAPSHOT_DELAY,
        FaultKind.HEARTBEAT_LOSS,
        FaultKind.HEARTBEAT_DELAY,
        FaultKind.CONTROLLER_CRASH,
        FaultKind.STORE_LOST,
    }
)
"""Faults during which news from or to their target may be delayed for long. Between regions any news may."""
_TRIES = 4
"""Tries after which a heartbeat, a query and an answer have got through a lossy network."""
_LATENESS_MAX = 2
"""Maximum factor of jitter on a delay."""


def overlap_max_ns(scenario: Scenario, keep_alive_ns: int) -> int:
    """Nanoseconds for which a gateway may go on pushing to a replica after it could know of another owner: half of the
    silence after which its controller counts as lost, the next heartbeat of a peer that knows, and a query to that
    peer."""
    assert scenario.controller is not None
    tries = _TRIES if scenario.network.loss_share else 1
    return scenario.controller.stream_timeout // 2 + tries * (keep_alive_ns + ASK_TIMEOUT_NS)


def controller_ways_ns(scenario: Scenario) -> dict[Way, int]:
    """Round trips between each controller and each region, both ways: those of the region that the controller stands
    beside."""
    section = scenario.controller
    if section is None:
        return {}
    known = scenario.round_trips_ns()
    ways: dict[Way, int] = {}
    for where, region in ((CONTROLLER, section.region), (STANDBY, section.standby)):
        for name in map(RegionName, scenario.regions if region is not None else ()):
            beside = RegionName(region or "")
            round_trip_ns = scenario.network.in_region if name == beside else known[beside, name]
            ways[RegionName(where), name] = ways[name, RegionName(where)] = round_trip_ns
    return ways


def _pools_of(around: SimEnvironment) -> list[frozenset[ReplicaId]]:
    """Workers of each disaggregated pool."""
    members: dict[PoolName, set[ReplicaId]] = {}
    for gateway in around.gateways.values():
        for replica in gateway.spec.replicas:
            if replica.role is not ReplicaRole.UNIFIED:
                members.setdefault(replica.pool, set()).add(replica.replica_id)
    return [frozenset(each) for each in members.values()]


class _ControlTracer:
    """Observer that notes the controller's steps in the chronicle, and the snapshots that gateways apply."""

    def __init__(self, chronicle: Chronicle, name: str = CONTROLLER) -> None:
        self._chronicle = chronicle
        self._name = name

    def on_controller_start(self, now_ns: int, term: int) -> None:
        self._chronicle.note(now_ns, f"{self._name} begins term {term}")

    def on_store_taken(self, now_ns: int, process: str) -> None:
        """Ignored: the beginning of a term is noted."""

    def on_store_written(self, now_ns: int, process: str) -> None:
        """Ignored: the snapshots that follow are noted."""

    def on_acting(self, now_ns: int, process: str) -> None:
        """Ignored: the controller's effects are noted."""

    def on_controller_step(self, now_ns: int, _clock_ns: int, event: News, effects: list[Order]) -> None:
        if effects or not isinstance(event, news.PeersHeard | news.GatewayProbed | news.ControllerTimePassed):
            told = " ".join(map(_order_in_words, effects))
            self._chronicle.note(now_ns, f"{self._name} {_news_in_words(event)} -> {told}")

    def on_snapshot_sent(
        self, now_ns: int, snapshot: ControlSnapshot, _policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        self._chronicle.note(now_ns, f"{self._name} snapshot {snapshot.version} to {snapshot.gateway_id}")

    def on_history_sent(
        self, now_ns: int, gateway_id: GatewayId, history: PoolHistory, _policies: Mapping[RegionName, ResidencyPolicy]
    ) -> None:
        rows = f"{len(history)} of {history.added} by {history.recorded_by}"
        self._chronicle.note(now_ns, f"{self._name} history of {history.pool} to {gateway_id}: {rows}")

    def on_snapshot_taken(self, now_ns: int, gateway_id: GatewayId, version: ControlVersion) -> None:
        self._chronicle.note(now_ns, f"{gateway_id} takes {version}")

    def on_newer_heard(self, now_ns: int, gateway_id: GatewayId, _peer: GatewayId, version: ControlVersion) -> None:
        self._chronicle.note(now_ns, f"{gateway_id} hears of {version}")

    def on_struck(self, now_ns: int, gateway_id: GatewayId) -> None:
        """Ignored: the fault itself is noted."""


def _news_in_words(event: News) -> str:
    """Text of an event; policies and configurations are given by name or digest, as sets have no order to print them
    in."""
    match event:
        case news.GatewayConnected() | news.PolicyAccepted():
            return f"{type(event).__name__} {event.gateway_id} {event.policy.digest}"
        case news.RegistryApplied():
            return f"RegistryApplied {len(event.gateways)} {len(event.replicas)}"
        case news.ControllerConfigApplied() | news.StateRestored():
            return type(event).__name__
        case _:
            return str(event)


def _order_in_words(effect: Order) -> str:
    return f"KeepPolicy {effect.policy.digest}" if isinstance(effect, KeepPolicy) else str(effect)


class Control:
    """Controllers of a world, and all that they reach."""

    def __init__(self, scenario: Scenario, around: SimEnvironment, chronicle: Chronicle, rng: random.Random) -> None:
        section = scenario.controller
        assert section is not None
        homes = {
            replica.replica_id: gateway_id
            for gateway_id, gateway in around.gateways.items()
            for replica in gateway.spec.replicas
        }
        self._around = around
        keep_alive_ns = max(each.spec.config.observation.keep_alive_ns for each in around.gateways.values())
        self.watch = ControlWatch(section, homes, overlap_max_ns(scenario, keep_alive_ns), _pools_of(around))
        self.failovers = Failovers(homes)
        watchers: tuple[ControlObserver, ...] = (_ControlTracer(chronicle), self.watch, self.failovers)
        around.observers = (*around.observers, self.watch, self.failovers)
        self._watchers = watchers
        self._section = section
        names = (CONTROLLER,) if section.standby is None else (CONTROLLER, STANDBY)
        shared = None if section.standby is None else SharedStore()
        self.controllers: dict[str, SimController] = {}
        for name in names:
            seated = (_ControlTracer(chronicle, name), self.watch.seat(name), self.failovers)
            self.controllers[name] = SimController(
                section, around.agenda, around.network, seated, name=name, shared=shared
            )
        times = ControlTimes(
            section.report_interval,
            section.stream_timeout,
            section.redial,
            scenario.network.connection_timeout,
            section.history_interval,
        )
        specs = {replica_id: engine.spec for replica_id, engine in around.engines.items()}
        self.attachments: dict[GatewayId, SimAttachment] = {}
        ties = AttachmentEnvironment(
            self.attachments,
            around.gateways,
            specs,
            tuple(self.controllers.values()),
            around.agenda,
            around.network,
            times,
            watchers,
            rng,
            section.refusing_share,
        )
        for gateway_id, gateway in around.gateways.items():
            self.attachments[gateway_id] = SimAttachment(gateway, ties)
            gateway.control = self.attachments[gateway_id]
        for controller in self.controllers.values():
            controller.know(self.attachments)
        servers: tuple[SimNameServer, ...] = (*self.controllers.values(), *self.attachments.values())
        zone = ServedZone(servers, around.agenda, around.network, scenario.names, rng)
        self.names = Names([RegionName(region) for region in scenario.regions], zone)

    def start(self) -> None:
        for controller in self.controllers.values():
            controller.start()

    def give_clients_the_name(self, town: ClientWorld) -> None:
        def call_by_name(request: ClientRequest, on_end: Callable[[ClientRequest], None]) -> Call:
            return SimCaller(town, self.names, self._around.gateways, request, on_end)

        town.call_by_name = call_by_name

    def serving(self) -> dict[GatewayId, tuple[ReplicaId, ...]]:
        """Replicas that the core of each running gateway pushes to."""
        return {
            gateway_id: tuple(state.spec.replica_id for state in gateway.core.replicas)
            for gateway_id, gateway in self._around.gateways.items()
            if gateway.core is not None
        }

    def is_home(self) -> bool:
        """True if every gateway serves exactly its own replicas."""
        serving = self.serving()
        return all(
            set(serving.get(gateway_id, ())) == {replica.replica_id for replica in gateway.spec.replicas}
            for gateway_id, gateway in self._around.gateways.items()
        )

    def figures(self) -> Figures:
        """JSON-able figures of the run."""
        overlaps_ns = self.watch.overlaps_ns.values()
        return {
            "failovers": [each.as_figures() for each in self.failovers.found],
            "overlap_max_s": round(max(overlaps_ns, default=0) / _SECOND_NS, 3),
            "told_by_peers": sum(each.told for each in self.attachments.values()),
        }

    # Faults

    def note(self, fault: SimFault, begins: bool) -> None:
        """Record the begin or end of a fault that may delay news."""
        now_ns = self._around.agenda.now_ns
        by = 1 if begins else -1
        if fault.kind.joins_regions:
            ends = frozenset(map(_as_one, (fault.target, fault.other)))
            self.watch.disturbed(ends, by, now_ns + self._late_ns(fault))
        elif fault.kind in _KEEPS_NEWS_AT_ONE or fault.kind.needs_pair:
            self.watch.disturbed(_as_one(fault.target), by, now_ns + self._late_ns(fault))
        strikes = fault.kind in STRIKES or fault.kind is FaultKind.OLD_SNAPSHOT
        if begins and strikes and self._around.gateways[GatewayId(fault.target)].is_up:
            for watcher in self._watchers:
                watcher.on_struck(now_ns, GatewayId(fault.target))

    def _late_ns(self, fault: SimFault) -> int:
        """Maximum delay of a message that was sent while the fault lasted."""
        if self._section.standby is not None and {fault.target, fault.other} & {CONTROLLER, STANDBY}:
            return self._succession_ns()
        if fault.kind in (FaultKind.SNAPSHOT_DELAY, FaultKind.HEARTBEAT_DELAY):
            return round(fault.amount * _SECOND_NS)
        if fault.kind is FaultKind.SLOW_LINK:
            one, other = RegionName(fault.target), RegionName(fault.other)
            return round(self._around.network.round_trip_ns(one, other) * fault.amount) * _LATENESS_MAX
        return 0

    def _succession_ns(self) -> int:
        """Maximum time until one of the two controllers leads, and gateways have found it."""
        section = self._section
        waits = section.lease + section.lapse_max + 2 * section.look_interval + section.restart
        return waits + section.stream_timeout + 4 * section.redial

    def change(self, fault: SimFault, begins: bool) -> None:
        """Apply or heal a fault of the controller, or of a gateway's attachment to it."""
        if fault.kind.hits_controller:
            self._change_controller(fault, begins)
            return
        gateway_id = GatewayId(fault.target)
        attachment, gateway = self.attachments[gateway_id], self._around.gateways[gateway_id]
        if fault.kind is FaultKind.SNAPSHOT_LOSS:
            attachment.loss_share = fault.amount if begins else 0.0
        elif fault.kind is FaultKind.SNAPSHOT_DELAY:
            attachment.delay_ns = round(fault.amount * _SECOND_NS) if begins else 0
        elif begins:
            assert fault.kind is FaultKind.OLD_SNAPSHOT
            gateway.crash()
        else:
            attachment.age_disk(_OLDER_BY)
            gateway.restart()

    def _change_controller(self, fault: SimFault, begins: bool) -> None:
        controller = self.controllers[fault.target]
        match fault.kind:
            case FaultKind.CLOCK_JUMP:
                if begins:
                    controller.jump(fault.amount)
            case FaultKind.STORE_CUT:
                controller.cut_off_from_store(begins)
            case FaultKind.CONTROLLER_STOPPED if begins:
                controller.stop_for_a_while()
            case FaultKind.CONTROLLER_STOPPED:
                controller.go_on()
            case _ if not begins:
                controller.start()
            case FaultKind.STORE_LOST:
                controller.lose_store()
            case _:
                controller.crash()


def _as_one(name: str) -> str:
    """Common name of both controllers as a source of news, which comes from the one that leads."""
    return CONTROLLER if name == STANDBY else name
