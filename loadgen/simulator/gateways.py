"""Driver of one production `GatewayCore` and its requests in virtual time: it opens their legs, probes its replicas and
carries its heartbeats. It decides nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, assert_never

from msgspec.structs import replace

from gateway.config.placement_plug_ins import find_policy
from gateway.core import events
from gateway.core.block_sizes import blocks_in, bytes_in
from gateway.core.events import Event
from gateway.core.features.cache_digests.events import DigestHeard, DigestPart
from gateway.core.features.cache_digests.feature import digests_of
from gateway.core.features.cache_digests.telling import Telling
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.core.features.prices.price_table import Prices
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.requests import RequestRecord
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy
from gateway.core.nearness import Nearness
from gateway.core.placement.prefix_index import Match
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    LoadReport,
    PeerObservation,
    PeerSpec,
    PoolName,
    PoolSpec,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    TargetKind,
    peer_target,
)
from gateway.request.answer import AnswerSettings
from gateway.request.engine_api import CHAT_PATH
from gateway.request.kept_answer import Hold, KeptAnswer
from gateway.request.legs import LegHandle, LegListener, OutboundRequest
from gateway.request.port import OpenRequest, Order
from gateway.request.proxied import ProxiedRequest, RequestContext
from loadgen.engine.blocks import NAME_BYTES
from loadgen.engine.sequences import EngineRequest
from loadgen.simulator.agenda import Action, Agenda
from loadgen.simulator.client_requests import ClientRequest, SimRanAt, Upstream
from loadgen.simulator.decode_inputs import DecodeInputs
from loadgen.simulator.engines import EngineRun, PrefillRun, SimEngine, SimReplica
from loadgen.simulator.heartbeats import Arrival, HeartbeatQueue
from loadgen.simulator.kv_feeds import KvFeeds, KvLog
from loadgen.simulator.network import Network, NetworkLine
from loadgen.simulator.observers import GatewayObserver, GatewaySpec
from loadgen.simulator.pool_sections import DisaggregatedSection
from loadgen.simulator.probes import Probes
from loadgen.simulator.process import Process
from loadgen.simulator.requests import SimContinuation, SimEngineLeg, SimPeerLeg, SimProgress, SimSink
from mesh.control.pool_history import PoolHistory
from mesh.silence import TIMEOUT_MIN_NS

_SECOND_NS = 1_000_000_000
NOTICED_AFTER_NS = TIMEOUT_MIN_NS
"""Time after which gateways notice the silence of a peer. Links are sound here until they are cut."""
_SETTINGS = AnswerSettings(engine_stall_s=None)
"""Silence is the network's matter here."""
_LATE_NS = (5_000_000, 100_000_000, 2_000_000_000)
_ACCEPT_TIMEOUT_NS = 10_000_000_000
"""Time-out in nanoseconds: a forward neither accepted nor refused by then has failed (`peering.accept_timeout`)."""
_WITH_TOOLS = b'{"tools":[{}]}'
"""Body of a request for an answer in one piece: with tools, a decode worker gives it whole as well."""


class ControlSide(Protocol):
    """Interface of a gateway to its attachment to a controller, if there is one."""

    @property
    def taken(self) -> ControlVersion:
        """Version of the snapshot by which it serves."""
        ...

    def began(self) -> tuple[ReplicaSpec, ...]:
        """Begin a life. Returns the replicas to serve, by the snapshot on its disk."""
        ...

    def ended(self, is_told: bool) -> None:
        """End a life. `is_told`: the other end of its stream is notified."""
        ...

    def policy_changed(self, policy: ResidencyPolicy) -> None: ...

    def heard(self, peer: GatewayId, version: ControlVersion) -> None:
        """Report a heartbeat from a peer that serves by this snapshot version."""
        ...

    def peer_gone(self, gateway_id: GatewayId) -> None: ...


@dataclass(slots=True, eq=False)
class SimEnvironment:
    """Shared environment of all gateways of a world."""

    agenda: Agenda
    network: Network
    engines: dict[ReplicaId, SimReplica]
    observers: Sequence[GatewayObserver]
    rng: random.Random
    probe_interval_ns: int
    heartbeat_batch_ns: int
    """Time within which heartbeats that arrive reach a core together."""
    request_deadline_ns: int
    kv_events: bool = False
    """Engines tell what their KV caches store and remove."""
    kv_event_loss: float = 0.0
    """Share of engines' KV events that are lost on their way."""
    exact_prefixes: bool = False
    """Gateways know what engines have cached, instead of remembering what they sent where."""
    resumes: bool = False
    """Continue answers that break."""
    pools: dict[PoolName, PoolSpec] = field(default_factory=dict)
    """Pools that have properties beside a name, by name."""
    disaggregated: dict[PoolName, DisaggregatedSection] = field(default_factory=dict)
    """Sections of the disaggregated pools, by name."""
    gateways: dict[GatewayId, SimGateway] = field(default_factory=dict)
    prices: Prices | None = None
    """Prices in force, if the scenario has any."""
    can_stall: bool = False
    """Gateways' processes stall in this world."""


def _always(_: int) -> bool:
    """Budget of transcripts, which are not kept here."""
    return True


def _raise(error: BaseException) -> None:
    """Stop the simulation at an error of a request's own."""
    raise error


class _SimTimer:
    """Timer of a request, in virtual time."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self._act = None

    def fire(self, turn_over: Callable[[], None]) -> None:
        if self._act is not None:
            self._act()
            turn_over()


class _SimPort:
    """Port of the requests of one life of a gateway. What its requests post after that life is not heard."""

    def __init__(self, gateway: SimGateway) -> None:
        self.progress: SimProgress = SimProgress()
        self._gateway: SimGateway | None = gateway

    def close(self) -> None:
        self._gateway = None

    def post(self, event: Event, /) -> None:
        if self._gateway is not None:
            self._gateway.post(event)

    def now_ns(self) -> int:
        return 0 if self._gateway is None else self._gateway.now_ns

    def after(self, delay_s: float, act: Callable[[], None]) -> _SimTimer:
        timer = _SimTimer(act)
        if self._gateway is not None:
            self._gateway.after(round(delay_s * _SECOND_NS), timer)
        return timer

    def is_open(self, request_id: RequestId) -> bool:
        return self._gateway is not None and request_id in self._gateway.open

    def begin(self, request: OpenRequest, arrival: events.RequestArrived | events.ForwardArrived) -> None:
        if self._gateway is not None:
            self._gateway.begin(request, arrival)

    def arrived(self) -> RequestRecord | None:
        return None if self._gateway is None or self._gateway.core is None else self._gateway.core.arrived

    def over(self, request_id: RequestId, request: OpenRequest) -> None:
        if self._gateway is not None:
            self._gateway.request_over(request_id, request)

    def keep(self, record: RequestRecord) -> None:
        """Records are read from the core here."""

    def done(self, record: RequestRecord) -> None:
        """See `keep`."""


class _Opener:
    """Opens legs of one kind of target."""

    __slots__ = ("_open",)

    def __init__(self, open_leg: Callable[[ordered.StartLeg, LegListener], LegHandle]) -> None:
        self._open = open_leg

    def open(self, order: ordered.StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:  # noqa: ARG002
        return self._open(order, listener)


class SimGateway:
    """One gateway process: it can crash, and restarts with its configuration only."""

    def __init__(self, spec: GatewaySpec, around: SimEnvironment, *, seed: int) -> None:
        self.spec = spec
        self.core: GatewayCore | None = None
        self.heartbeat_loss_share = 0.0
        self.heartbeat_delay_ns = 0
        self.late_share = 0.0
        self._around = around
        self._agenda = around.agenda
        self.process = Process() if around.can_stall else None
        """Process, in worlds where it may stall."""
        self.first_seed = seed
        self._life = 0
        """Number of starts and ends of its process; actions due from an earlier life are dropped."""
        self._kv_feeds: KvFeeds | None = None
        self._policy = spec.policy
        self.open: dict[RequestId, OpenRequest] = {}
        """Requests that are not over."""
        self._sinks: dict[RequestId, SimSink] = {}
        """Receivers of their answers."""
        self._port = _SimPort(self)
        self._context = self._make_context()
        self._ended: list[events.LegEnded] = []
        """Ends of legs that were posted and not handled yet."""
        self._inbox: deque[Event] = deque()
        self._is_pumping = False
        self._wake_ns: int | None = None
        self.heartbeats = HeartbeatQueue(around.agenda, around.heartbeat_batch_ns, self._heartbeats_came)
        self._tellings: dict[GatewayId, Telling] = {}
        """Cache digest as each peer was told it."""
        self._digest_due_ns: dict[GatewayId, int] = {}
        """Time by which the last part of each peer's digest arrives here: parts arrive in order."""
        self._round_trips_ns: dict[GatewayId, int] = {}
        self.control: ControlSide | None = None
        self._revision = 0
        """Gateway's own count of its assignments."""
        self.is_silent = False
        """True while its host is gone."""
        self._probes = self._probes_of(spec.replicas)
        self._decode_inputs: DecodeInputs | None = None
        """Inputs of its decode tiers, while its process runs and the world has disaggregated pools."""

    @property
    def gateway_id(self) -> GatewayId:
        return self.spec.gateway_id

    @property
    def region(self) -> RegionName:
        return self.spec.place.region

    @property
    def is_up(self) -> bool:
        return self.core is not None

    @property
    def life(self) -> int:
        """Number of its process, which starts and ends count up."""
        return self._life

    @property
    def is_stalled(self) -> bool:
        return self.process is not None and self.process.is_stalled

    @property
    def follows_answers(self) -> bool:
        return self._around.resumes

    @property
    def wants_counts(self) -> bool:
        return self._around.kv_events or self._around.prices is not None

    @property
    def waiting(self) -> int:
        return 0 if self.core is None else len(self.core.waiting)

    @property
    def owned_requests(self) -> int:
        return len(self.open)

    @property
    def now_ns(self) -> int:
        return self._agenda.now_ns

    @property
    def progress(self) -> SimProgress:
        return self._port.progress

    # Life of the process

    def start(self, first_probe_ns: int = 0) -> None:
        self._life += 1
        self.is_silent = False
        replicas = self.spec.replicas
        if self.control is not None:
            replicas = self.control.began()
            self._probe_these(replicas)
        self._revision = max(self._revision + 1, self._life)
        self.core = GatewayCore(
            self.gateway_id, self.spec.place, seed=self.first_seed + self._life, plug_ins=find_policy
        )
        if self._around.exact_prefixes:
            self.core.placer.match_exactly(self._exact_match)
        if self._around.disaggregated:
            self._decode_inputs = DecodeInputs(self.core, self._agenda, self.tell, self._around.disaggregated)
        self.heartbeats.forget()
        for observer in self._around.observers:
            observer.on_start(self.spec, self._policy, self.core)
        self.tell(events.ConfigApplied(self.spec.config))
        self.tell(events.PolicyApplied(self._policy))
        if self._around.prices is not None:
            self.prices_changed(self._around.prices)
        self._kv_feeds = self._make_kv_feeds(self.core)
        self._tell_assignment(replicas)
        self._after(first_probe_ns, self._probe, self._life)

    def prices_changed(self, prices: Prices) -> None:
        if self.core is not None:
            self.tell(events.PricesChanged(prices))

    def assign(self, replicas: tuple[ReplicaSpec, ...]) -> None:
        """Change the replicas that it serves."""
        if self.core is None:
            return
        self._probe_these(replicas)
        self._revision += 1
        self._tell_assignment(replicas)

    def histories(self, home_of: Mapping[PoolName, GatewayId]) -> list[PoolHistory]:
        """Histories of the disaggregated pools that it serves."""
        return [] if self._decode_inputs is None else list(self._decode_inputs.histories(home_of))

    def history_came(self, history: PoolHistory) -> None:
        if self._decode_inputs is not None:
            self._decode_inputs.history_came(history)

    def _tell_assignment(self, replicas: tuple[ReplicaSpec, ...]) -> None:
        assignment = self._assignment(replicas)
        self.tell(assignment)
        self._follow_kv_events()
        if self._decode_inputs is not None:
            self._decode_inputs.assigned(pool.name for pool in assignment.pools)

    def _make_kv_feeds(self, core: GatewayCore) -> KvFeeds:
        around, hears = self._around, kv_events_of(core).hears
        return KvFeeds(
            self.region,
            self._agenda,
            around.network,
            rng=around.rng,
            loss_share=around.kv_event_loss,
            pause_ns=self.spec.config.kv_events.pause_ns,
            tell=self.tell,
            hears=hears,
        )

    def _follow_kv_events(self) -> None:
        """Follow the present processes of its engines that tell of their caches."""
        if self.core is None or self._kv_feeds is None:
            return
        logs: dict[ReplicaId, tuple[RegionName, KvLog]] = {}
        for state in self.core.replicas:
            engine = self._around.engines[state.spec.replica_id]
            if state.spec.tells_cache and isinstance(engine, SimEngine):
                logs[state.spec.replica_id] = (state.spec.place.region, engine.kv_log)
        self._kv_feeds.follow(logs)

    def _assignment(self, replicas: tuple[ReplicaSpec, ...]) -> events.AssignmentApplied:
        taken = ControlVersion() if self.control is None else self.control.taken
        served = {each.replica_id for each in replicas}
        elsewhere = (each.models for each in self.spec.replicas if each.replica_id not in served)
        away = tuple(dict.fromkeys(chain.from_iterable(elsewhere)))
        named = {each.pool for each in replicas}
        pools = tuple(pool for pool in self._around.pools.values() if pool.name in named)
        return events.AssignmentApplied(self._revision, replicas, self.spec.peers, taken, away, pools)

    def crash(self) -> None:
        """End the process; the other ends of its connections notice, as far as the network allows."""
        if self.core is None:
            return
        for sink in self._end_life():
            sink.line.close_far("the gateway's connection was reset")
            for leg in sink.legs:
                leg.drop("the gateway is gone")
        self._end_stall()
        if self.control is not None:
            self.control.ended(True)
        for peer in self.spec.peers:
            other = self._around.gateways[peer.gateway_id]
            self._around.network.datagram(self.region, other.region, other.peer_gone, self.gateway_id)

    def fall_silent(self) -> None:
        """End the process with its host: the other ends of its connections notice only by their time-outs."""
        if self.core is None:
            return
        self.is_silent = True
        self._agenda.after(NOTICED_AFTER_NS, self._silence_is_noticed, self._life + 1)
        for sink in self._end_life():
            self._around.network.fall_silent(sink.line)
            for leg in sink.legs:
                leg.is_over = True
                if leg.line is not None:
                    self._around.network.fall_silent(leg.line)
        self._end_stall()
        if self.control is not None:
            self.control.ended(False)

    def stall(self) -> None:
        """Stall the process: peers notice by its silence, and by connections on which no keep-alive is answered."""
        if self.process is None or self.core is None or self.process.is_stalled:
            return
        self.process.stall()
        self._agenda.after(NOTICED_AFTER_NS, self._stall_is_noticed, self.process.stalls)
        self._agenda.after(self._around.network.connection_timeout_ns, self._peers_hang_up, self.process.stalls)

    def go_on(self) -> None:
        """End a stall, and handle all that came meanwhile."""
        self._end_stall()
        self.turn_over()

    def _end_stall(self) -> None:
        """Run what has waited. Where the process has ended, connections are refused by the time they are read."""
        if self.process is not None and self.process.is_stalled:
            self.process.go_on()

    def _stall_is_noticed(self, stall: int) -> None:
        if self.is_stalled and self.process is not None and self.process.stalls == stall:
            for peer in self.spec.peers:
                self._around.gateways[peer.gateway_id].peer_silent(self.gateway_id)

    def _peers_hang_up(self, stall: int) -> None:
        """Break the connections to other gateways, which heard no answer to their keep-alives."""
        if not self.is_stalled or self.process is None or self.process.stalls != stall:
            return
        for sink in list(self._sinks.values()):
            lines = [leg.line for leg in sink.legs if isinstance(leg, SimPeerLeg) and leg.line is not None]
            if isinstance(sink.upstream, SimPeerLeg):
                lines.append(sink.line)
            for line in lines:
                line.break_both("no keep-alive was answered")

    def _end_life(self) -> list[SimSink]:
        """Reset the state of the process. Returns the receivers of its requests' answers."""
        self.core = None
        if self._kv_feeds is not None:
            self._kv_feeds.close()
            self._kv_feeds = None
        if self._decode_inputs is not None:
            self._decode_inputs.close()
            self._decode_inputs = None
        self._life += 1
        self._wake_ns = None
        self._inbox.clear()
        for probes in self._probes.values():
            probes.forget()
        self.heartbeats.forget()
        self._port.close()
        self._port = _SimPort(self)
        self._context = self._make_context()
        self._ended.clear()
        self._tellings.clear()
        self.open = {}
        sinks, self._sinks = list(self._sinks.values()), {}
        return [sink for sink in sinks if sink.request is not None and not sink.request.has_left]

    def restart(self) -> None:
        if self.core is None:
            self.start()

    def drain(self) -> None:
        self.tell(events.DrainRequested())

    def replace(self) -> None:
        """Replace a running process by a new one, without its requests. No effect on a gateway that is down."""
        if self.is_up:
            self.crash()
            self.restart()

    def set_policy_readable(self, readable: bool) -> None:
        self._policy = self.spec.policy if readable else closed_policy(self.spec.place, "its file cannot be read")
        self.tell(events.PolicyApplied(self._policy))
        if self.control is not None:
            self.control.policy_changed(self._policy)

    def _exact_match(self, profile: RequestProfile, mask: int) -> Match:
        assert self.core is not None, "only a core that lives asks"
        whole = self._sinks[profile.request_id].client_request.whole
        engine_blocks = profile.prefix_block_bytes // whole.block_bytes
        chain = whole.names[: bytes_in(profile.prefix_blocks, engine_blocks) * NAME_BYTES]
        best, best_mask = 0, 0
        for slot in slots_of(mask):
            engine = self._around.engines[self.core.replicas.at(slot).spec.replica_id]
            blocks = blocks_in(engine.known_blocks(chain), engine_blocks)
            if blocks > best:
                best, best_mask = blocks, 0
            if blocks and blocks == best:
                best_mask |= 1 << slot
        return Match(best, best_mask)

    # Events in, effects out

    def tell(self, event: Event) -> None:
        """Handle an event. Events caused by its effects wait until all effects are performed, as in the live driver."""
        if self.core is None:
            return
        self._inbox.append(event)
        if not self._is_pumping:
            self.turn_over()

    def post(self, event: Event) -> None:
        """Take an event of a request; it is handled with the next `turn_over`."""
        self._inbox.append(event)
        if self.late_share and isinstance(event, events.LegEnded):
            if self._is_pumping:
                self._repeat_late(event)
            else:
                self._ended.append(event)

    def turn_over(self) -> None:
        """Handle the events that wait. Events caused by their effects wait until all effects are performed."""
        if self.core is None or self._is_pumping or self.is_stalled:
            return
        self._is_pumping = True
        try:
            self._pump(self.core)
        finally:
            self._is_pumping = False
        self._arm()
        ended, self._ended = self._ended, []
        for each in ended:
            self._repeat_late(each)

    def after(self, delay_ns: int, timer: _SimTimer) -> None:
        self._after(delay_ns, timer.fire, self.turn_over)

    def _after(self, delay_ns: int, action: Action, *details: Any) -> None:
        """Run an action of the process later."""
        if self.process is None:
            self._agenda.after(delay_ns, action, *details)
        else:
            self._agenda.after(delay_ns, self.process.run, action, *details)

    def _pump(self, core: GatewayCore) -> None:
        now_ns, gateway_id, observers = self._agenda.now_ns, self.spec.gateway_id, self._around.observers
        while self._inbox:
            event = self._inbox.popleft()
            effects = core.handle(event, now_ns)
            for observer in observers:
                observer.on_step(now_ns, gateway_id, event, effects)
            for effect in effects:
                self._perform(effect)

    def _arm(self) -> None:
        wake_ns = None if self.core is None else self.core.next_wakeup_ns()
        if wake_ns is None:
            return
        wake_ns = max(wake_ns, self._agenda.now_ns)
        if self._wake_ns is None or wake_ns < self._wake_ns:
            self._wake_ns = wake_ns
            self._after(wake_ns - self._agenda.now_ns, self._wake, self._life, wake_ns)

    def _wake(self, life: int, wake_ns: int) -> None:
        if life != self._life or wake_ns != self._wake_ns:
            return
        self._wake_ns = None
        assert self.core is not None
        next_ns = self.core.next_wakeup_ns()
        if next_ns is not None and next_ns <= self._agenda.now_ns:
            self.tell(events.TimePassed())
        else:
            self._arm()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case ordered.PublishLoad():
                self._publish(effect.report)
            case (
                ordered.StartLeg()
                | ordered.StopLeg()
                | ordered.TakeBackLeg()
                | ordered.EndRequest()
                | ordered.AcceptForward()
                | ordered.RefuseForward()
            ):
                self._order(effect)
            case ordered.RecordShadow():
                pass
            case ordered.SampleProgress():
                self.tell(events.ProgressSampled(effect.pool, self.progress.sample(effect.pool)))
            case _ as never:
                assert_never(never)

    # Requests

    def request_arrives(self, client_request: ClientRequest, line: NetworkLine, upstream: Upstream) -> None:
        if self.core is None:
            self._refuse(line)
            return
        deadline_ns = self._agenda.now_ns + self._around.request_deadline_ns
        self._begin(
            events.RequestArrived(client_request.profile, deadline_ns), SimSink(self, client_request, line, upstream)
        )

    def _begin(self, arrival: events.RequestArrived | events.ForwardArrived, sink: SimSink) -> None:
        profile = sink.client_request.profile
        outbound = OutboundRequest(profile, CHAT_PATH, (), b"" if profile.stream else _WITH_TOOLS)
        hold = _always if self.follows_answers else None
        sink.request = request = ProxiedRequest(self._context, arrival, outbound, sink, hold=hold)
        self._sinks.setdefault(arrival.profile.request_id, sink)
        request.begin()
        self.turn_over()

    def begin(self, request: OpenRequest, arrival: events.RequestArrived | events.ForwardArrived) -> None:
        self.open[arrival.profile.request_id] = request
        self.tell(arrival)

    def request_over(self, request_id: RequestId, request: OpenRequest) -> None:
        if self.open.get(request_id) is request:
            del self.open[request_id]
            del self._sinks[request_id]

    def _order(self, order: Order) -> None:
        request = self.open.get(order.request_id)
        if request is not None:
            request.on_effect(order)
        elif isinstance(order, ordered.StartLeg):
            detail = "the owner left"
            self.post(LegEnded(order.request_id, order.attempt, order.leg, LegResult.CANCELLED, detail=detail))

    def _refuse(self, line: NetworkLine) -> None:
        """Refuse a connection, as no process runs here; a host that is gone does not answer at all."""
        if self.is_silent:
            self._around.network.fall_silent(line)
        else:
            line.close_far("connection refused")

    def forward_arrives(
        self, leg: SimPeerLeg, client_request: ClientRequest, hops: Hops, stamp: ResidencyStamp, left_ns: int
    ) -> None:
        line = leg.line
        assert line is not None
        if self.core is None:
            self._refuse(line)
            return
        origin, profile = leg.home_id, client_request.rest(leg.said) if leg.said else client_request.profile
        if leg.order.budget_tokens:
            profile = replace(profile, budget_tokens=leg.order.budget_tokens)
        if leg.order.identity is not None:
            profile = replace(profile, identity=leg.order.identity)
        deadline_ns, notes = self._agenda.now_ns + left_ns, leg.order.notes
        arrival = events.ForwardArrived(profile, deadline_ns, origin, hops, stamp, notes)
        self._begin(arrival, SimSink(self, client_request, line, leg, leg.said))

    def upstream_left(self, line: NetworkLine, request_id: RequestId) -> None:
        """Abandon a request whose client, or forwarding gateway, has left."""
        sink = self._sinks.get(request_id)
        if sink is not None and sink.line is line and sink.request is not None:
            sink.request.client_left()
            self.turn_over()

    def settle(self, sink: SimSink, *, is_whole: bool) -> None:
        """Report the tokens that a request has used, as the core asked at its end."""
        client_request = sink.client_request
        output_tokens = client_request.output_tokens if is_whole else sink.said
        used = client_request.prompt_tokens + output_tokens if is_whole or sink.has_begun else 0
        self.tell(events.TokensSettled(client_request.request_id, used))

    def _repeat_late(self, ended: events.LegEnded) -> None:
        """Fault: report an ended attempt once more, with another result."""
        if self._around.rng.random() >= self.late_share:
            return
        sink = self._sinks.get(ended.request_id)
        result = self._around.rng.choice((LegResult.COMPLETED, LegResult.FAILED))
        late = events.LegEnded(ended.request_id, ended.attempt, ended.leg, result, detail="a late answer")
        delay_ns = self._around.rng.choice(_LATE_NS)
        self._after(delay_ns, self._tell_late, self._life, sink, late)

    def _tell_late(self, life: int, sink: SimSink | None, late: events.LegEnded) -> None:
        """Deliver a late report, only to the visit it belongs to: a request forwarded here twice counts its attempts
        anew."""
        if life == self._life and self._sinks.get(late.request_id) in (sink, None):
            self.tell(events.FirstToken(late.request_id, late.attempt, late.leg))
            self.tell(late)

    # Legs

    def _make_context(self) -> RequestContext:
        return RequestContext(
            self._port,
            {TargetKind.REPLICA: _Opener(self._push), TargetKind.PEER: _Opener(self._forward)},
            _SETTINGS,
            keep_answer=self._keep_answer,
            on_fault=_raise,
            draw=bytes,
            compare=self._nearness,
        )

    def _nearness(self, pool: PoolName, counts: bytes) -> Nearness | None:
        return None if self._decode_inputs is None else self._decode_inputs.nearness(pool, counts)

    def _keep_answer(
        self,
        outbound: OutboundRequest,
        hold: Hold,  # noqa: ARG002 - nothing is kept
        put: Callable[[bytes], bool],
        *,
        prefix_blocks_max: int,  # noqa: ARG002 - prompts are known whole
    ) -> KeptAnswer:
        return SimContinuation(self._sinks[outbound.profile.request_id], outbound, put)

    def _push(self, order: ordered.StartLeg, listener: LegListener) -> LegHandle:
        sink, engine = self._sinks[order.request_id], self._around.engines[ReplicaId(order.target.id)]
        run_id = f"{order.request_id} {self.gateway_id} {order.attempt}.{order.leg}"
        upstream = sink.upstream
        if isinstance(upstream, SimPeerLeg) and upstream.order.attempt > 1:  # the request may have been here before
            run_id += f" of {upstream.order.attempt}"
        leg = SimEngineLeg(self, self._port, sink, order, listener, engine=engine, run_id=run_id)
        line = self._around.network.connect(
            self.region, engine.spec.place.region, leg.broke, lambda _: engine.abort(run_id)
        )
        leg.line, line.near_process = line, self.process
        run = EngineRun(
            run_id,
            self._engine_request(leg),
            on_first_token=lambda run: self._begun(line, leg, run),
            on_finished=lambda: line.to_near(leg.finished),
            on_rejected=lambda rejection: line.to_near(leg.rejected, rejection, engine.config.context_tokens_max),
            on_lost=line.close_far,
            is_followed=self._around.resumes and order.role is not LegRole.PREFILL,
        )
        if run.is_followed:
            leg.run = run
        if order.role is LegRole.PREFILL:
            sink.reading = run
        elif order.role is LegRole.DECODE:
            self._hand_over(leg, run)
        line.to_far(engine.submit, run)
        return leg

    def _engine_request(self, leg: SimEngineLeg) -> EngineRequest:
        client_request = leg.sink.client_request
        if leg.order.role is not LegRole.PREFILL:
            tokens = client_request.prompt_tokens + leg.said, client_request.output_tokens - leg.said
            return EngineRequest(leg.run_id, *tokens, client_request.whole.names)
        pool = self._around.pools[leg.engine.spec.pool]
        return EngineRequest(
            leg.run_id, client_request.prompt_tokens + leg.said, 1, client_request.whole.names, lease_ns=pool.lease_ns
        )

    def _hand_over(self, leg: SimEngineLeg, run: EngineRun) -> None:
        """Tell a decode run where its prompt was computed: engines meet by the prefill's answer, or by what both were
        told."""
        order, reading = leg.order, leg.sink.reading
        assert order.prefill is not None, "a worker reads the prompt"
        assert order.connector is not None, "it is handed over by a connector"
        assert reading is not None, "the prompt was asked for first"
        source = self._around.engines[ReplicaId(order.prefill.id)]
        assert isinstance(source, SimEngine), "a prefill worker"
        run.handoff = PrefillRun(source, reading.run_id)
        run.waits_for_its_prompt = not order.connector.is_sequential

    def _begun(self, line: NetworkLine, leg: SimEngineLeg, run: EngineRun) -> None:
        """Report a run's first token, except the single token of a prefill."""
        if leg.order.role is not LegRole.PREFILL:
            read_by = leg.sink.reading if leg.order.role is LegRole.DECODE else run
            cached_tokens = 0 if read_by is None else read_by.cached_tokens or 0
            engine = leg.engine
            line.to_near(leg.first_token, self._ran_at(leg, engine, cached_tokens))

    def _ran_at(self, leg: SimEngineLeg, engine: SimReplica, cached_tokens: int) -> SimRanAt:
        spec, order = engine.spec, leg.order
        identity = order.answers_as if order.role is LegRole.DECODE else spec.identity_of(spec.models[0])
        return SimRanAt(spec.place.region, engine.replica_id, cached_tokens, identity)

    def _forward(self, order: ordered.StartLeg, listener: LegListener) -> LegHandle:
        sink, peer = self._sinks[order.request_id], self._around.gateways[GatewayId(order.target.id)]
        assert order.hops is not None
        assert order.stamp is not None
        leg = SimPeerLeg(self, self._port, sink, order, listener, home_id=self.gateway_id, place=peer.spec.place)
        line = self._around.network.connect(
            self.region, peer.region, leg.broke, lambda _: peer.upstream_left(line, order.request_id)
        )
        leg.line, line.near_process, line.far_process = line, self.process, peer.process
        left_ns = order.deadline_ns - self._agenda.now_ns
        line.to_far(peer.forward_arrives, leg, sink.client_request, order.hops, order.stamp, left_ns)
        self._after(_ACCEPT_TIMEOUT_NS, leg.not_accepted_in_time)
        return leg

    # Heartbeats and probes

    def _heartbeats_came(self, arrived: Sequence[Arrival]) -> None:
        if self.process is not None and self.process.is_stalled:
            self.process.run(self._read_late, arrived)
        else:
            self._hear(arrived)

    def _read_late(self, arrived: Sequence[Arrival]) -> None:
        """Read heartbeats that came in a stall: the process takes them for as new as those that come now."""
        self._hear([(self._agenda.now_ns, report) for _, report in arrived])

    def _hear(self, arrived: Sequence[Arrival]) -> None:
        """Convert peers' reports to the gateway's clock: each counts as measured half a round trip before its
        arrival."""
        if self.core is not None:
            self.tell(events.PeersObserved(tuple(self._observation(report, at_ns) for at_ns, report in arrived)))
            if self.control is not None:
                for _, report in arrived:
                    self.control.heard(report.gateway_id, report.control)

    def _observation(self, report: LoadReport, heard_ns: int) -> PeerObservation:
        rtt_ns = self._round_trip_ns(report.gateway_id)
        return PeerObservation(report, max(0, heard_ns - rtt_ns // 2), heard_ns, rtt_ns, rtt_ns)

    def _round_trip_ns(self, peer: GatewayId) -> int:
        rtt_ns = self._round_trips_ns.get(peer)
        if rtt_ns is None:
            rtt_ns = self._around.network.round_trip_ns(self.region, self._around.gateways[peer].region)
            self._round_trips_ns[peer] = rtt_ns
        return rtt_ns

    def peer_gone(self, gateway_id: GatewayId) -> None:
        if self.process is not None and self.process.is_stalled:
            self.process.run(self.peer_gone, gateway_id)
            return
        self.tell(events.TargetLost(peer_target(gateway_id), "its connection was reset"))
        if self.control is not None:
            self.control.peer_gone(gateway_id)

    def _silence_is_noticed(self, life: int) -> None:
        if self.is_silent and life == self._life:
            for peer in self.spec.peers:
                self._around.gateways[peer.gateway_id].peer_silent(self.gateway_id)

    def peer_silent(self, gateway_id: GatewayId) -> None:
        """Report a peer of which nothing was heard for a while, if it was heard before."""
        if self.process is not None and self.process.is_stalled:
            self.process.run(self.peer_silent, gateway_id)
            return
        peer = None if self.core is None else self.core.peers.get(gateway_id)
        if peer is not None and peer.healthy:
            self.tell(events.TargetLost(peer_target(gateway_id), "it gave no sign of life", is_silent=True))

    def _publish(self, report: LoadReport) -> None:
        for peer in self.spec.peers:
            part = self._digest_for(peer)
            if self.heartbeat_loss_share and self._around.rng.random() < self.heartbeat_loss_share:
                continue
            other = self._around.gateways[peer.gateway_id]
            if self.heartbeat_delay_ns:
                self._agenda.after(self.heartbeat_delay_ns, self._send_heartbeat, other, report, part)
            else:
                self._send_heartbeat(other, report, part)

    def _send_heartbeat(self, other: SimGateway, report: LoadReport, part: DigestPart | None) -> None:
        delay_ns = self._around.network.datagram_delay_ns(self.region, other.region)
        if delay_ns is not None:
            other.heartbeats.expect(report.told_to(other.spec.place), self._agenda.now_ns + delay_ns)
            if part is not None:
                other.expect_digest(DigestHeard(self.gateway_id, part), self._agenda.now_ns + delay_ns)

    def _digest_for(self, peer: PeerSpec) -> DigestPart | None:
        """Part of the cache digest that goes with a heartbeat; it is lost with it."""
        if self.core is None or not self.spec.config.cache_digests.enabled:
            return None
        telling = self._tellings.setdefault(peer.gateway_id, Telling())
        return digests_of(self.core).next_part(telling, peer, self._agenda.now_ns)

    def expect_digest(self, heard: DigestHeard, at_ns: int) -> None:
        due_ns = self._digest_due_ns[heard.gateway_id] = max(at_ns, self._digest_due_ns.get(heard.gateway_id, 0))
        self._after(due_ns - self._agenda.now_ns, self._digest_came, heard)

    def _digest_came(self, heard: DigestHeard) -> None:
        """Hand a part of a digest to the core, and ask the peer to tell everything anew where one is missing."""
        if self.core is None:
            return
        self.tell(heard)
        if digests_of(self.core).is_to_be_asked(heard.gateway_id, self._agenda.now_ns):
            other = self._around.gateways[heard.gateway_id]
            self._around.network.datagram(self.region, other.region, other.digest_wanted, self.gateway_id)

    def digest_wanted(self, gateway_id: GatewayId) -> None:
        if self.process is not None and self.process.is_stalled:
            self.process.run(self.digest_wanted, gateway_id)
        else:
            self._tellings.pop(gateway_id, None)

    def _probes_of(self, replicas: Sequence[ReplicaSpec]) -> dict[RegionName, Probes]:
        engines: dict[RegionName, list[SimReplica]] = {}
        for replica in replicas:
            engines.setdefault(replica.place.region, []).append(self._around.engines[replica.replica_id])
        again_after_ns = self.spec.config.observation.replica_stale_ns // 2
        return {region: Probes(there, again_after_ns) for region, there in engines.items()}

    def _probe_these(self, replicas: Sequence[ReplicaSpec]) -> None:
        for probes in self._probes.values():
            probes.close()
        self._probes = self._probes_of(replicas)

    def _probe(self, life: int) -> None:
        if life != self._life:
            return
        sent_ns = self._agenda.now_ns
        for region, probes in self._probes.items():
            if not self._around.network.is_cut(self.region, region):
                way_ns = self._around.network.round_trip_ns(self.region, region) // 2
                self._agenda.after(way_ns, self._sample, life, region, probes, sent_ns, way_ns)
        self._after(self._around.probe_interval_ns, self._probe, life)

    def _sample(self, life: int, region: RegionName, probes: Probes, sent_ns: int, way_ns: int) -> None:
        if life != self._life or self._around.network.is_cut(region, self.region):
            return
        observations = probes.news(sent_ns)
        if observations:
            self._after(way_ns, self._observed, life, probes, observations)

    def _observed(self, life: int, probes: Probes, observations: tuple[ReplicaObservation, ...]) -> None:
        if life == self._life:
            probes.tell(observations)
            self.tell(events.ReplicasObserved(observations))
            if self._around.kv_events:
                self._follow_kv_events()
