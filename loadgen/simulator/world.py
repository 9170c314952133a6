"""Simulated world: one virtual clock, gateways, engines, users, the network between them, and faults.

It plays one run of a scenario and returns everything observed. Equal seeds give equal results.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from msgspec.structs import replace

from gateway.core.features.leaving.events import ReplicaLeaves
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.vocabulary import (
    GatewayId,
    ModelName,
    PeerSpec,
    PoolKind,
    RegionName,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
)
from loadgen.engine.model import EngineConfig
from loadgen.figures import Figures
from loadgen.report import PrefixTokens, RequestReport
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.batch_sections import BatchSection
from loadgen.simulator.batches import BatchReport, SimBatches
from loadgen.simulator.checkers import CheckCounts, InvariantWatch
from loadgen.simulator.chronicle import Chronicle
from loadgen.simulator.client_requests import ClientRequest
from loadgen.simulator.clients import ClientGroup, ClientWorld, record_of
from loadgen.simulator.control import Control, controller_ways_ns
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.decode_workers import SimDecodeGroup, SimDecodeWorker
from loadgen.simulator.digest_watch import DigestWatch
from loadgen.simulator.engines import SimEngine, SimReplica
from loadgen.simulator.faults import FaultKey, FaultKind, SimFault
from loadgen.simulator.gateways import NOTICED_AFTER_NS, SimEnvironment, SimGateway
from loadgen.simulator.money import Meter
from loadgen.simulator.network import Network
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.scaling import Autoscaler
from loadgen.simulator.scaling_sections import ScalingMode
from loadgen.simulator.scenario import ClientsSection, RunSection, Scenario
from loadgen.simulator.tenant_watch import TenantWatch

_SECOND_NS = 1_000_000_000
_SETTLE_NS = 2 * _SECOND_NS
_SERVICE_NS = 60 * _SECOND_NS
_HOMECOMING_NS = 60 * _SECOND_NS
_LOOK_NS = _SECOND_NS // 10
_LOOKS_A_SAMPLE = 10
"""Points between two samples of the regions at which the caller may end the run."""
_DEAFENING = frozenset(
    {
        FaultKind.PARTITION,
        FaultKind.ONE_WAY_PARTITION,
        FaultKind.SLOW_LINK,
        FaultKind.LOSSY_LINK,
        FaultKind.UNSTEADY_LINK,
        FaultKind.HEARTBEAT_LOSS,
        FaultKind.HEARTBEAT_DELAY,
        FaultKind.GATEWAY_CRASH,
        FaultKind.GATEWAY_SILENT,
        FaultKind.GATEWAY_STALLED,
    }
)
_LOCKDOWNS = (FaultKind.LOCKDOWN, FaultKind.LOCKDOWN_CUT)


@dataclass(frozen=True, slots=True)
class RegionSample:
    """State of one region at one moment."""

    at_ns: int
    queue: int
    """Requests waiting at the region's gateways."""
    outstanding: tuple[int, ...]
    """Requests running or waiting at each of its engines."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    simulated_ns: int
    ended: int
    """Requests that have ended for their clients."""
    open: int

    @property
    def requests(self) -> int:
        return self.ended + self.open


@dataclass(frozen=True, slots=True)
class Story:
    """Results of one run."""

    run: RunSection
    records: tuple[RequestReport, ...]
    counts: CheckCounts
    outcomes: dict[str, int]
    samples: dict[RegionName, list[RegionSample]]
    prefix_tokens: dict[RegionName, PrefixTokens]
    """Prompt tokens queried and found in the caches of each region's engines, after the warm-up."""
    digest: str
    events: int
    """Events handled by gateway cores."""
    simulated_ns: int
    control: Figures | None = None
    """Timeline of each gateway failure, if there is a controller."""
    scaling: Figures | None = None
    """Replica-hours, starts and stops, if replicas are scaled."""
    money: Figures | None = None
    """Costs, if the scenario has prices."""
    batches: tuple[BatchReport, ...] = ()
    """Outcome of each file of requests."""


class World:
    """One run of one scenario."""

    def __init__(
        self,
        scenario: Scenario,
        run: RunSection,
        *,
        every_invariant: bool = False,
        on_line: Callable[[str], object] | None = None,
        decisions: DecisionDigest | None = None,
    ) -> None:
        """`on_line` receives each line of the chronicle; `decisions` hashes what gateways decide, costs included."""
        self._has_readers = every_invariant or decisions is not None
        self.watch = InvariantWatch(every_invariant=every_invariant)
        self.chronicle = Chronicle(on_line)
        self.tenants = TenantWatch(_sides(scenario))
        self.digests = DigestWatch()
        self._scenario = scenario
        self._run = run
        self._agenda = Agenda()
        config = scenario.network.as_config()
        ways = scenario.round_trips_ns() | controller_ways_ns(scenario)
        self._network = Network(self._agenda, ways, config, self._rng("network"))
        self._engines: dict[ReplicaId, SimReplica] = {}
        self._autoscaler = self._build_autoscaler()
        self._around = SimEnvironment(
            self._agenda,
            self._network,
            self._engines,
            (
                self.chronicle,
                self.watch,
                self.tenants,
                *([self.digests] if run.as_config().cache_digests.enabled else []),
                *([] if self._autoscaler is None else [self._autoscaler]),
                *([] if decisions is None else [decisions]),
            ),
            self._rng("faults"),
            scenario.probe_interval,
            scenario.heartbeat_batch,
            scenario.request_deadline,
            scenario.kv_events,
            scenario.kv_event_loss,
            run.exact_prefixes,
            scenario.resumes,
            scenario.pools(run),
            scenario.disaggregated_pools(),
            can_stall=any(fault.kind is FaultKind.GATEWAY_STALLED for fault in scenario.faults),
        )
        self._gateways = self._around.gateways
        self._priced = None if scenario.prices is None else scenario.prices.as_day(scenario.day_ns)
        self._meter = None if self._priced is None else Meter(self._priced)
        self._build_gateways()
        if self._autoscaler is not None:
            for gateway in self._gateways.values():
                self._autoscaler.manage(gateway, self._engines, scenario.model)
        self.control = self._build_control()
        self._ways_in = {RegionName(region): self._nearest_gateways(RegionName(region)) for region in scenario.regions}
        self._turns: Counter[RegionName] = Counter()
        self._active: Counter[FaultKey] = Counter()
        self._town = self._build_town()
        if self.control is not None:
            self.control.give_clients_the_name(self._town)
        self._groups = [self._group(number, section) for number, section in enumerate(scenario.clients)]
        self._batches = self._build_batches()
        self._samples: dict[RegionName, list[RegionSample]] = {RegionName(region): [] for region in scenario.regions}
        self._prefix_tokens_before = dict.fromkeys(self._samples, PrefixTokens())

    @property
    def now_ns(self) -> int:
        return self._agenda.now_ns

    def core_seed(self, gateway_id: GatewayId) -> int:
        """Seed of the core with which a gateway began its first life; a journal's header needs it."""
        return self._gateways[gateway_id].first_seed + 1

    @property
    def end_ns(self) -> int:
        """Latest end of the run, before any check."""
        return self._scenario.duration + self._scenario.drain

    @property
    def progress(self) -> Progress:
        return Progress(self.now_ns, len(self._town.records), len(self._town.open_asks))

    def play(self, goes_on: Callable[[], bool] = lambda: True) -> Story:
        """Play from the first start to the end of the drain, or until `goes_on` returns False. Raises Broken if an
        invariant does not hold."""
        with _seldom_collecting():
            self._start()
            while goes_on() and (
                self.now_ns < self._scenario.duration or (self.now_ns < self.end_ns and not self._is_quiet())
            ):
                self._play_a_sample(goes_on)
            return self._story()

    def _play_a_sample(self, goes_on: Callable[[], bool]) -> None:
        begin_ns = self.now_ns
        for look in range(1, _LOOKS_A_SAMPLE + 1):
            self._agenda.run_until(begin_ns + self._scenario.sample * look // _LOOKS_A_SAMPLE)
            if not goes_on():
                return

    def check_the_end(self) -> None:
        """Check, after `play`, that all requests have ended, nothing is left over, and new requests are served. Raises
        Broken.

        The groups ask in turn: an engine with no room for waiting requests refuses the second of two, however idle it
        is.
        """
        if self._batches is not None:
            self._batches.expect_ended()
        self._settle()
        if self.control is not None:
            self._await_homecoming(self.control)
        for group in self._groups:
            answers: list[ClientRequest] = []
            group.check_service(answers.append)
            limit_ns = self.now_ns + _SERVICE_NS
            while not answers and self.now_ns < limit_ns:
                self._agenda.run_until(self.now_ns + _LOOK_NS)
        self._settle()

    def _await_homecoming(self, control: Control) -> None:
        """Wait until every replica is home; a gateway that failed often is watched for long before its replicas
        return."""
        section = self._scenario.controller
        assert section is not None
        limit_ns = self.now_ns + section.return_after_max + section.freeze_max + section.unknown_for + _HOMECOMING_NS
        while not control.is_home() and self.now_ns < limit_ns:
            self._agenda.run_until(self.now_ns + _SECOND_NS)
        self._settle()
        control.watch.expect_home(self.now_ns, control.serving())

    def _settle(self) -> None:
        self._agenda.run_until(self.now_ns + _SETTLE_NS)
        owned = sum(gateway.owned_requests for gateway in self._gateways.values())
        self.watch.expect_quiet(self._engines.values(), self._town.open_asks.values(), owned, self.now_ns)

    # Construction

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self._scenario.seed}/{name}")

    def _build_gateways(self) -> None:
        fleet = self._scenario.fleet()
        groups = {
            name: SimDecodeGroup(config, transfer, self._agenda)
            for name, (config, transfer) in self._scenario.decode_groups().items()
        }
        for owned in fleet.values():
            for replica, engine in owned:
                self._engines[replica.replica_id] = (
                    SimDecodeWorker(replica, engine, self._agenda, groups[replica.group])
                    if replica.role is ReplicaRole.DECODE
                    else SimEngine(replica, engine, self._agenda)
                )
        if self._run.system.is_global:
            fleet = self._as_one(fleet)
        places = {gateway_id: self._scenario.place(_region_of(gateway_id)) for gateway_id in fleet}
        config = self._run.as_config()
        if not self._has_readers:  # No observer reads what else a decision considered.
            config = replace(config, placement=replace(config.placement, considered_max=0))
        seeds = self._rng("cores")
        for gateway_id, owned in fleet.items():
            peers = tuple(PeerSpec(other, place) for other, place in places.items() if other != gateway_id)
            spec = GatewaySpec(
                gateway_id,
                places[gateway_id],
                tuple(replica for replica, _ in owned),
                peers,
                self._scenario.policy_of(_region_of(gateway_id)),
                config,
            )
            self._gateways[gateway_id] = SimGateway(spec, self._around, seed=seeds.randrange(2**32))

    def _build_autoscaler(self) -> Autoscaler | None:
        section, mode = self._scenario.scaling, self._run.scaling
        if section is None or mode is ScalingMode.NONE:
            return None
        return Autoscaler(section, mode, self._agenda, self._network, self.chronicle.note)

    def _build_control(self) -> Control | None:
        if self._scenario.controller is None:
            return None
        return Control(self._scenario, self._around, self.chronicle, self._rng("control"))

    def _as_one(
        self, fleet: dict[GatewayId, list[tuple[ReplicaSpec, EngineConfig]]]
    ) -> dict[GatewayId, list[tuple[ReplicaSpec, EngineConfig]]]:
        """Fleet with all replicas behind one gateway."""
        region = self._scenario.balancer_region or next(iter(self._scenario.regions))
        first = next(gateway_id for gateway_id in fleet if _region_of(gateway_id) == region)
        return {first: [replica for owned in fleet.values() for replica in owned]}

    def _nearest_gateways(self, region: RegionName) -> list[list[SimGateway]]:
        """Gateways by their distance from the region, the nearest first; those at equal distance in one list."""
        by_distance: dict[int, list[SimGateway]] = {}
        for gateway in self._gateways.values():
            by_distance.setdefault(self._network.round_trip_ns(region, gateway.region), []).append(gateway)
        return [by_distance[distance] for distance in sorted(by_distance)]

    def _build_town(self) -> ClientWorld:
        scenario = self._scenario
        engine = next(iter(self._engines.values())).config
        block_bytes = engine.block_tokens * 4
        return ClientWorld(
            self._agenda,
            self._network,
            self.watch,
            self.chronicle,
            self._ingress_of,
            ModelName(scenario.model),
            block_bytes,
            scenario.prefix_block // block_bytes,
            scenario.duration,
            scenario.pause_after_failure,
            has_disaggregated=any(pool.kind is PoolKind.DISAGGREGATED for pool in scenario.pools(self._run).values()),
        )

    def _ingress_of(self, region: RegionName) -> SimGateway | None:
        """Nearest gateway that is up; those at equal distance take turns."""
        for near in self._ways_in[region]:
            up = [gateway for gateway in near if gateway.is_up]
            if up:
                self._turns[region] += 1
                return up[self._turns[region] % len(up)]
        return None

    def _group(self, number: int, section: ClientsSection) -> ClientGroup:
        workload = self._scenario.workload_of(number)
        return ClientGroup(number, section, workload, self._town, self._rng(f"clients {number}"))

    def _build_batches(self) -> SimBatches | None:
        section = self._scenario.batches
        if section is None:
            return None
        files = enumerate(section.files, len(self._scenario.clients))
        workloads = {name: self._scenario.workload(name) for name in {file.workload for file in section.files}}
        groups = [
            ClientGroup(number, _as_clients(file), workloads[file.workload], self._town, self._rng(f"clients {number}"))
            for number, file in files
        ]
        programs = [
            workloads[each.workload].programs(f"{each.region}/file{number}")
            for number, each in enumerate(section.files)
        ]
        return SimBatches(section, groups, programs, self._agenda, self._gateways, verdict=self._scenario.verdict)

    # Course of the run

    def _start(self) -> None:
        interval_ns = self._scenario.probe_interval
        self._change_prices()
        if self.control is not None:
            self.control.start()
        for number, gateway in enumerate(self._gateways.values()):
            gateway.start(interval_ns * number // len(self._gateways))
        if self._autoscaler is not None:
            self._autoscaler.start()
        for section in self._scenario.faults:
            fault = section.as_fault()
            for from_ns, to_ns in fault.spans():
                self._agenda.at(from_ns, self._strike, fault)
                self._agenda.at(to_ns, self._heal, fault)
        for group in self._groups:
            group.start()
        if self._batches is not None:
            self._batches.start()
        self._agenda.at(self._scenario.warm_up, self._end_warm_up)
        self._sample()

    def _change_prices(self) -> None:
        """Apply the prices of the present time of day, and schedule their next change."""
        if self._priced is None:
            return
        self._around.prices = self._priced.at(self.now_ns)
        for gateway in self._gateways.values():
            gateway.prices_changed(self._around.prices)
        change_ns = self._priced.next_change_ns(self.now_ns)
        if change_ns is not None and change_ns < self._scenario.duration:
            self._agenda.at(change_ns, self._change_prices)

    def _end_warm_up(self) -> None:
        self._prefix_tokens_before = self._prefix_tokens()

    def _sample(self) -> None:
        now_ns = self.now_ns
        dead = [each.gateway_id for each in self._gateways.values() if not each.is_up or each.is_stalled]
        self.watch.look_for_idle_engines(self._engines, now_ns, dead)
        queues: Counter[RegionName] = Counter()
        for gateway in self._gateways.values():
            queues[gateway.region] += gateway.waiting
        outstanding: dict[RegionName, list[int]] = {region: [] for region in self._samples}
        for engine in self._engines.values():
            outstanding[engine.spec.place.region].append(engine.outstanding)
        for region, samples in self._samples.items():
            samples.append(RegionSample(now_ns, queues[region], tuple(outstanding[region])))
        if self._meter is not None:
            engines = self._engines.values()
            self._meter.look(now_ns, [(each.spec.place.region, each.spec.pool, each.outstanding) for each in engines])
        if now_ns < self._scenario.duration:
            self._agenda.after(self._scenario.sample, self._sample)

    def _is_quiet(self) -> bool:
        return (
            not self._town.open_asks
            and (self._batches is None or self._batches.are_over)
            and not self._active.total()
            and not any(gateway.owned_requests for gateway in self._gateways.values())
            and not any(engine.outstanding or engine.kept for engine in self._engines.values())
        )

    # Faults

    def _strike(self, fault: SimFault) -> None:
        """Begin a fault. Faults of one kind at one place may overlap: the effect lasts from the first begin to the last
        end."""
        self.chronicle.note(self.now_ns, f"fault {fault}")
        key = fault.key
        self._active[key] += 1
        if self._active[key] == 1:
            self._change(fault, begins=True)

    def _heal(self, fault: SimFault) -> None:
        self.chronicle.note(self.now_ns, f"healed {fault}")
        key = fault.key
        self._active[key] -= 1
        if not self._active[key]:
            self._change(fault, begins=False)

    def _change(self, fault: SimFault, *, begins: bool) -> None:
        if self.control is not None:
            self.control.note(fault, begins)
        if fault.kind.joins_regions:
            self._change_way(fault, begins)
        elif fault.kind.needs_controller:
            assert self.control is not None, "the scenario has been checked"
            self.control.change(fault, begins)
        elif fault.kind.hits_replica:
            self._change_engine(fault, self._engines[ReplicaId(fault.target)], begins)
        elif GatewayId(fault.target) in self._gateways:  # a global balancer replaces all gateways
            self._change_gateway(fault, self._gateways[GatewayId(fault.target)], begins)

    def _change_way(self, fault: SimFault, begins: bool) -> None:
        one, other = RegionName(fault.target), RegionName(fault.other)
        ways = [(one, other)] if fault.kind is FaultKind.ONE_WAY_PARTITION else [(one, other), (other, one)]
        for way in ways:
            if fault.kind is FaultKind.SLOW_LINK:
                self._network.slow(*way, fault.amount if begins else 1.0)
            elif fault.kind is FaultKind.LOSSY_LINK:
                self._network.lose(*way, fault.amount if begins else 0.0)
            elif fault.kind is FaultKind.UNSTEADY_LINK:
                self._network.shake(*way, fault.amount if begins else 0.0)
            elif begins:
                self._network.cut(*way)
                self._agenda.after(NOTICED_AFTER_NS, self._notice_silence, *way)
            else:
                self._network.heal(*way)

    def _notice_silence(self, sender: RegionName, receiver: RegionName) -> None:
        """Let the gateways of a region notice that they hear nothing from another one."""
        if self._network.cut_for_ns(sender, receiver) < NOTICED_AFTER_NS:
            return
        for gateway in self._gateways.values():
            for peer in gateway.spec.peers if gateway.region == receiver else ():
                if peer.place.region == sender:
                    gateway.peer_silent(peer.gateway_id)

    def _change_engine(self, fault: SimFault, engine: SimReplica, begins: bool) -> None:
        if fault.kind is FaultKind.REPLICA_SLOW:
            if engine.is_up or not begins:
                engine.slow_down(round(100 * fault.amount) if begins else 100)
        elif fault.kind is FaultKind.REPLICA_HANG:
            engine.hang(begins)
        elif fault.kind is FaultKind.REPLICA_LEAVES:
            leave_by_ns = self.now_ns + round(fault.amount * _SECOND_NS) if begins else None
            for gateway in self._gateways.values():  # only the one that serves it takes it in
                gateway.tell(ReplicaLeaves(engine.replica_id, leave_by_ns))
        elif begins:
            engine.crash()
        else:
            engine.restart()

    def _change_gateway(self, fault: SimFault, gateway: SimGateway, begins: bool) -> None:
        match fault.kind:
            case FaultKind.GATEWAY_CRASH:
                gateway.crash() if begins else gateway.restart()
            case FaultKind.GATEWAY_SILENT:
                gateway.fall_silent() if begins else gateway.restart()
            case FaultKind.GATEWAY_STALLED:
                gateway.stall() if begins else gateway.go_on()
            case FaultKind.GATEWAY_DRAIN:
                gateway.drain() if begins else gateway.replace()
            case FaultKind.LOCKDOWN | FaultKind.LOCKDOWN_CUT:
                self._change_lockdown(fault, gateway, begins)
            case FaultKind.HEARTBEAT_LOSS:
                gateway.heartbeat_loss_share = fault.amount if begins else 0.0
            case FaultKind.HEARTBEAT_DELAY:
                gateway.heartbeat_delay_ns = round(fault.amount * _SECOND_NS) if begins else 0
            case FaultKind.POLICY_UNREADABLE:
                gateway.set_policy_readable(not begins)
            case FaultKind.LATE_ANSWERS:
                gateway.late_share = fault.amount if begins else 0.0
            case (
                FaultKind.REPLICA_CRASH
                | FaultKind.REPLICA_SLOW
                | FaultKind.REPLICA_HANG
                | FaultKind.REPLICA_LEAVES
                | FaultKind.PARTITION
                | FaultKind.ONE_WAY_PARTITION
                | FaultKind.SLOW_LINK
                | FaultKind.LOSSY_LINK
                | FaultKind.UNSTEADY_LINK
                | FaultKind.CONTROLLER_CRASH
                | FaultKind.CONTROLLER_STOPPED
                | FaultKind.STORE_CUT
                | FaultKind.STORE_LOST
                | FaultKind.CLOCK_JUMP
                | FaultKind.SNAPSHOT_LOSS
                | FaultKind.SNAPSHOT_DELAY
                | FaultKind.OLD_SNAPSHOT
            ):
                raise AssertionError(f"{fault.kind} hits no gateway")
            case _ as never:
                assert_never(never)

    def _change_lockdown(self, fault: SimFault, gateway: SimGateway, begins: bool) -> None:
        """Change a gateway's lockdown. Both kinds share it: it is lifted when the last of either is over."""
        if begins or not any(self._active[kind, fault.target, fault.other] for kind in _LOCKDOWNS):
            gateway.tell(LockdownChanged(begins, cut=fault.kind is FaultKind.LOCKDOWN_CUT))

    # Results

    def _prefix_tokens(self) -> dict[RegionName, PrefixTokens]:
        found = dict.fromkeys(self._samples, PrefixTokens())
        for engine in self._engines.values():
            found[engine.spec.place.region] += engine.prefix_tokens()
        return found

    def _story(self) -> Story:
        before = self._prefix_tokens_before
        prefix_tokens = {region: after - before[region] for region, after in self._prefix_tokens().items()}
        unfinished = [record_of(request, self._town) for request in self._town.open_asks.values()]
        return Story(
            self._run,
            (*self._town.records, *unfinished),
            self.watch.counts,
            dict(sorted(self._town.outcomes.items())),
            self._samples,
            prefix_tokens,
            self.chronicle.digest(),
            self.chronicle.events,
            self.now_ns,
            None if self.control is None else self.control.figures(),
            None if self._autoscaler is None else self._autoscaler.figures(self._scenario.duration),
            self._money(),
            () if self._batches is None else self._batches.reports(),
        )

    def _money(self) -> Figures | None:
        """Costs of the time in which load was sent, including requests that ended later."""
        if self._meter is None:
            return None
        return self._meter.figures(min(self.now_ns, self._scenario.duration), self._town.records)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Make garbage collections rare: finished requests leave no cycles, so collections would cost a large fleet's run
    more than they free; only crashed gateways leave cycles."""
    before = gc.get_threshold()
    gc.set_threshold(5_000_000, 10, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _as_clients(file: BatchSection) -> ClientsSection:
    """Client that handed a file in."""
    return ClientsSection(region=file.region, workload=file.workload, tenant=file.tenant)


def _region_of(gateway_id: GatewayId) -> str:
    return gateway_id.rpartition("/")[0]


def _sides(scenario: Scenario) -> int:
    """Maximum number of parts into which the scenario's faults may split the gateways, so that parts do not hear each
    other."""
    if not any(fault.kind in _DEAFENING for fault in scenario.faults):
        return 1
    return sum(region.gateways for region in scenario.regions.values())
