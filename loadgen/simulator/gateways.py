"""Driver of one production `GatewayCore` in virtual time: it owns its requests' legs, probes its replicas and carries
its heartbeats.

It does what the live driver, owners and edges do, with the same guarantees: each StartLeg is answered by exactly one
LegEnded, and an end that leaves early closes what was opened. It decides nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol, assert_never

from gateway.config.placement_plug_ins import find_policy
from gateway.core import events
from gateway.core.events import Event
from gateway.core.features.prices.price_table import Prices
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy
from gateway.core.placement.prefix_index import Match
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    LoadReport,
    Outcome,
    PeerObservation,
    PoolName,
    PoolSpec,
    RefusalReason,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    Resumes,
    TargetKind,
    peer_target,
)
from loadgen.engine.blocks import NAME_BYTES
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.vocabulary import Rejection
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.asks import Ask, RanAt, Upstream
from loadgen.simulator.engines import EngineRun, Handoff, SimEngine, SimReplica
from loadgen.simulator.heartbeats import Arrival, Heartbeats
from loadgen.simulator.network import Line, Network
from loadgen.simulator.observers import GatewayObserver, GatewaySpec
from loadgen.simulator.probes import Probes

_LATE_NS = (5_000_000, 100_000_000, 2_000_000_000)
_ACCEPT_TIMEOUT_NS = 10_000_000_000
"""Time-out in nanoseconds: a forward neither accepted nor refused by then has failed (`peering.accept_timeout`)."""


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
class Surroundings:
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
    exact_prefixes: bool = False
    """Gateways know what engines have cached, instead of remembering what they sent where."""
    resumes: bool = False
    """Continue answers that break."""
    pools: dict[PoolName, PoolSpec] = field(default_factory=dict)
    """Pools that have properties beside a name, by name."""
    gateways: dict[GatewayId, SimGateway] = field(default_factory=dict)
    prices: Prices | None = None
    """Prices in force, if the scenario has any."""


class _Owner:
    """One request at one gateway."""

    __slots__ = ("ask", "has_begun", "legs", "line", "reading", "said", "upstream")

    def __init__(self, ask: Ask, line: Line, upstream: Upstream, said: int = 0) -> None:
        self.ask = ask
        self.said = said
        """Tokens of the answer that exist already: the next run writes from there on."""
        self.has_begun = False
        """True once a first token was reported upstream."""
        self.line = line
        self.upstream = upstream
        self.legs: dict[tuple[int, int], _Leg] = {}
        """Live legs, by attempt and number."""
        self.reading: EngineRun | None = None
        """Latest run that computed the prompt for a decode worker."""

    @property
    def is_heard(self) -> bool:
        """True while this owner's reports still reach a client."""
        if isinstance(self.upstream, _Leg):
            return self.upstream.is_alive and self.upstream.owner.is_heard
        return self.ask.ended_ns is None


class _Leg:
    """One leg, seen from the gateway that started it. Reports that arrive after its end are ignored."""

    __slots__ = (
        "decoding",
        "gateway",
        "has_begun",
        "is_accepted",
        "is_alive",
        "key",
        "line",
        "order",
        "owner",
        "run",
        "said",
    )

    def __init__(self, gateway: SimGateway, owner: _Owner, order: ordered.StartLeg) -> None:
        self.gateway = gateway
        self.owner = owner
        self.order = order
        self.key = (order.attempt, order.leg)
        self.is_accepted = False
        self.is_alive = True
        self.has_begun = False
        self.said = owner.said
        self.run: tuple[EngineRun, SimReplica] | None = None
        """Local run that writes the answer, and its engine."""
        self.line: Line | None = None
        self.decoding: tuple[SimReplica, str] | None = None
        """Decode worker and run id, for a leg that decodes."""

    def forward_accepted(self) -> None:
        if self.is_alive:
            self.is_accepted = True
            self.gateway.tell(events.LegAccepted(self.order.request_id, self.order.attempt, self.order.leg))

    def forward_refused(self, reason: RefusalReason, detail: str) -> None:
        self.end(LegResult.REFUSED, detail, reason)

    def first_token(self, ran_at: RanAt) -> None:
        if self.is_alive:
            if self.decoding is not None:
                self.gateway.decoding[self.order.request_id, self.order.attempt] = self.decoding
            self._begin()
            if not self.owner.has_begun:
                self.owner.has_begun = True
                self.owner.line.to_near(self.owner.upstream.first_token, ran_at)
            if self.owner.ask.is_stored:
                self.gateway.tell(
                    events.ResponseStored(
                        self.order.request_id, self.order.attempt, self.order.leg, self.owner.ask.response_id
                    )
                )
            self.gateway.tell(events.FirstToken(self.order.request_id, self.order.attempt, self.order.leg))

    def _begin(self) -> None:
        self.has_begun = True
        if self.run is not None and self.gateway.follows_answers and self.owner.is_heard:
            self.owner.ask.told.begins(self.said, *self.run)

    def _rest(self) -> RequestProfile | None:
        """Rest of an answer that has just broken. None: it is not continued."""
        ask = self.owner.ask
        if not (self.gateway.follows_answers and self.has_begun and self.order.may_break and self.owner.is_heard):
            return None
        said = ask.told.breaks_off()
        if ask.is_stored or not 0 < said < ask.output_tokens:
            return None
        self.owner.said = said
        return ask.rest(said)

    def _forget_what_is_on_its_way(self, result: LegResult) -> None:
        """Reset the answer's progress if a forward ended before its first token: tokens that the peer still sends are
        not heard."""
        is_unheard = self.order.target.kind is TargetKind.PEER and not self.has_begun
        if is_unheard and result is not LegResult.COMPLETED and self.gateway.follows_answers and self.owner.is_heard:
            self.owner.ask.told.comes_no_further(self.said)

    def ended(self, outcome: Outcome, detail: str, resumes_used: Resumes) -> None:
        """End the leg with a peer's final outcome."""
        result, refusal, detail = leg_end_of(outcome, detail)
        if result is LegResult.CLIENT_ERROR and detail == Rejection.TOO_LONG:
            self._too_long(events.TooLong())
        else:
            prompt_tokens, output_tokens = self._usage() if result is LegResult.COMPLETED else (None, None)
            self.end(
                result,
                detail,
                refusal,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                resumes_used=resumes_used,
            )

    def finished(self) -> None:
        ask = self.owner.ask
        if self.order.role is LegRole.WHOLE:
            prompt_tokens, output_tokens = self._usage()
            self.end(LegResult.COMPLETED, "", prompt_tokens=prompt_tokens, output_tokens=output_tokens)
            return
        output_tokens = ask.output_tokens if self.order.role is LegRole.DECODE else None
        prompt_tokens = ask.prompt_tokens if self.order.role is LegRole.PREFILL else None
        self.end(LegResult.COMPLETED, "", prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def _usage(self) -> tuple[int | None, int | None]:
        """Prompt and output tokens that the engine counted; reported only for pools chosen by length, or where answers
        cost money."""
        if self.order.decision.pool is None and not self.gateway.counts_money:
            return None, None
        return self.owner.ask.prompt_tokens, self.owner.ask.output_tokens

    def rejected(self, rejection: Rejection, limit_tokens: int) -> None:
        """End the leg after an engine's rejection: a full queue is no failure, and excess length is the client's
        error."""
        if rejection is Rejection.QUEUE_FULL:
            self.end(LegResult.BUSY, rejection)
        else:
            ask = self.owner.ask
            self._too_long(events.TooLong(limit_tokens, ask.prompt_tokens + ask.output_tokens))

    def _too_long(self, told: events.TooLong) -> None:
        """End the leg as too long: for a longer pool if there may be one, else with an error for the client."""
        result = LegResult.TOO_LONG if self.order.may_be_longer else LegResult.CLIENT_ERROR
        self.end(result, Rejection.TOO_LONG, too_long=told)

    def broke(self, detail: str) -> None:
        self.end(LegResult.FAILED, detail)

    def not_accepted_in_time(self) -> None:
        if self.is_alive and not self.is_accepted:
            self.close("the peer neither accepted nor refused in time")
            self.end(LegResult.FAILED, "the peer neither accepted nor refused in time")

    def close(self, detail: str) -> None:
        if self.line is not None:
            self.line.close_near(detail)

    def end(
        self,
        result: LegResult,
        detail: str,
        refusal: RefusalReason | None = None,
        *,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        too_long: events.TooLong | None = None,
        resumes_used: Resumes | None = None,
    ) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        del self.owner.legs[self.key]
        if self.decoding is not None:
            self.gateway.decoding.pop((self.order.request_id, self.order.attempt), None)
        if self.line is not None and result is not LegResult.CANCELLED:
            self.line.finish()
        self._forget_what_is_on_its_way(result)
        may_go_on = result in (LegResult.FAILED, LegResult.BUSY, LegResult.REFUSED)
        ended = events.LegEnded(
            self.order.request_id,
            self.order.attempt,
            self.order.leg,
            result,
            refusal,
            prompt_tokens,
            output_tokens,
            detail,
            too_long=too_long,
            rest=self._rest() if may_go_on else None,
            resumes_used=resumes_used,
        )
        self.gateway.tell(ended)
        self.gateway.repeat_late(self.owner, ended)


class SimGateway:
    """One gateway process: it can crash, and restarts with its configuration only."""

    def __init__(self, spec: GatewaySpec, around: Surroundings, *, seed: int) -> None:
        self.spec = spec
        self.core: GatewayCore | None = None
        self.heartbeat_loss_share = 0.0
        self.heartbeat_delay_ns = 0
        self.late_share = 0.0
        self._around = around
        self._agenda = around.agenda
        self.first_seed = seed
        self._life = 0
        """Number of starts and ends of its process; actions due from an earlier life are dropped."""
        self._policy = spec.policy
        self._owners: dict[RequestId, _Owner] = {}
        self._leaving: dict[RequestId, _Owner] = {}
        """Owners whose clients have left, until the core has ended their requests."""
        self._inbox: deque[Event] = deque()
        self._is_pumping = False
        self._wake_ns: int | None = None
        self.heartbeats = Heartbeats(around.agenda, around.heartbeat_batch_ns, self._hear)
        self._round_trips_ns: dict[GatewayId, int] = {}
        self.control: ControlSide | None = None
        self._revision = 0
        """Gateway's own count of its assignments."""
        self.is_silent = False
        """True while its host is gone."""
        self.decoding: dict[tuple[RequestId, int], tuple[SimReplica, str]] = {}
        """Decode worker and run id of each attempt that has begun to decode."""
        self._probes = self._probes_of(spec.replicas)

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
    def follows_answers(self) -> bool:
        return self._around.resumes

    @property
    def counts_money(self) -> bool:
        return self._around.prices is not None

    @property
    def waiting(self) -> int:
        return 0 if self.core is None else len(self.core.waiting)

    @property
    def owned_requests(self) -> int:
        return len(self._owners)

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
        self.heartbeats.forget()
        for observer in self._around.observers:
            observer.on_start(self.spec, self._policy, self.core)
        self.tell(events.ConfigApplied(self.spec.config))
        self.tell(events.PolicyApplied(self._policy))
        if self._around.prices is not None:
            self.prices_changed(self._around.prices)
        self.tell(self._assignment(replicas))
        self._agenda.after(first_probe_ns, self._probe, self._life)

    def prices_changed(self, prices: Prices) -> None:
        if self.core is not None:
            self.tell(events.PricesChanged(prices))

    def assign(self, replicas: tuple[ReplicaSpec, ...]) -> None:
        """Change the replicas that it serves."""
        if self.core is None:
            return
        self._probe_these(replicas)
        self._revision += 1
        self.tell(self._assignment(replicas))

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
        for owner in self._end_life():
            owner.line.close_far("the gateway's connection was reset")
            legs, owner.legs = owner.legs, {}
            for leg in legs.values():
                leg.is_alive = False
                leg.close("the gateway is gone")
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
        for owner in self._end_life():
            self._around.network.fall_silent(owner.line)
            legs, owner.legs = owner.legs, {}
            for leg in legs.values():
                leg.is_alive = False
                if leg.line is not None:
                    self._around.network.fall_silent(leg.line)
        if self.control is not None:
            self.control.ended(False)

    def _end_life(self) -> list[_Owner]:
        """Reset the state of the process. Returns the owners of its requests."""
        self.core = None
        self._life += 1
        self._wake_ns = None
        self._inbox.clear()
        for probes in self._probes.values():
            probes.forget()
        self.heartbeats.forget()
        self.decoding.clear()
        owners, self._owners = list(self._owners.values()), {}
        self._leaving.clear()
        return owners

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
        whole = self._owners[profile.request_id].ask.whole
        engine_blocks = profile.prefix_block_bytes // whole.block_bytes
        chain = whole.names[: profile.prefix_blocks * engine_blocks * NAME_BYTES]
        best, best_mask = 0, 0
        for slot in slots_of(mask):
            engine = self._around.engines[self.core.replicas.at(slot).spec.replica_id]
            blocks = engine.known_blocks(chain) // engine_blocks
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
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            self._pump(self.core)
        finally:
            self._is_pumping = False
        self._arm()

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
            self._agenda.at(wake_ns, self._wake, self._life, wake_ns)

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
            case ordered.StartLeg():
                self._start_leg(effect)
            case ordered.EndRequest():
                ended = self._owners.pop(effect.request_id, None)
                if ended is not None:
                    ended.line.to_near(ended.upstream.ended, effect.outcome, effect.detail, effect.resumes_used)
                ended = ended or self._leaving.pop(effect.request_id, None)
                if effect.is_charged and ended is not None:
                    self._settle(ended, is_whole=effect.outcome is Outcome.COMPLETED)
            case ordered.PublishLoad():
                self._publish(effect.report)
            case ordered.StopLeg():
                self._stop_leg(effect)
            case ordered.AcceptForward():
                owner = self._owners[effect.request_id]
                owner.line.to_near(owner.upstream.forward_accepted)
            case ordered.RefuseForward():
                owner = self._owners.pop(effect.request_id)
                owner.line.to_near(owner.upstream.forward_refused, effect.reason, effect.detail)
            case ordered.RecordShadow():
                pass
            case ordered.SampleProgress():
                self.tell(events.ProgressSampled(effect.pool, tuple(self._progress(effect.pool))))
            case _ as never:
                assert_never(never)

    # Requests

    def request_arrives(self, ask: Ask, line: Line, upstream: Upstream) -> None:
        if self.core is None:
            self._refuse(line)
            return
        self._owners[ask.request_id] = _Owner(ask, line, upstream)
        self.tell(events.RequestArrived(ask.profile, self._agenda.now_ns + self._around.request_deadline_ns))

    def _refuse(self, line: Line) -> None:
        """Refuse a connection, as no process runs here; a host that is gone does not answer at all."""
        if self.is_silent:
            self._around.network.fall_silent(line)
        else:
            line.close_far("connection refused")

    def forward_arrives(self, leg: _Leg, ask: Ask, hops: Hops, stamp: ResidencyStamp, left_ns: int) -> None:
        line = leg.line
        assert line is not None
        if self.core is None:
            self._refuse(line)
            return
        if ask.request_id in self._owners:
            line.to_near(leg.forward_refused, RefusalReason.DUPLICATE, "a request of this id is here already")
            return
        self._owners[ask.request_id] = _Owner(ask, line, leg, leg.said)
        origin, profile = leg.gateway.gateway_id, ask.rest(leg.said) if leg.said else ask.profile
        if leg.order.budget_tokens:
            profile = replace(profile, budget_tokens=leg.order.budget_tokens)
        deadline_ns, resumes_left = self._agenda.now_ns + left_ns, leg.order.resumes_left
        self.tell(events.ForwardArrived(profile, deadline_ns, origin, hops, stamp, resumes_left))

    def upstream_left(self, line: Line, request_id: RequestId) -> None:
        """Abandon a request whose client, or forwarding gateway, has left."""
        owner = self._owners.get(request_id)
        if owner is None or owner.line is not line:
            return
        self._leaving[request_id] = self._owners.pop(request_id)
        for leg in list(owner.legs.values()):
            self._cancel(leg)
        self.tell(events.RequestAbandoned(request_id))

    def _settle(self, owner: _Owner, *, is_whole: bool) -> None:
        """Report the tokens that a request has used, as the core asked at its end."""
        ask = owner.ask
        output_tokens = ask.output_tokens if is_whole else owner.said
        used = ask.prompt_tokens + output_tokens if is_whole or owner.has_begun else 0
        self.tell(events.TokensSettled(ask.request_id, used))

    def repeat_late(self, owner: _Owner, ended: events.LegEnded) -> None:
        """Fault: report an ended attempt once more, with another result."""
        if not self.late_share or self._around.rng.random() >= self.late_share:
            return
        result = self._around.rng.choice((LegResult.COMPLETED, LegResult.FAILED))
        late = events.LegEnded(ended.request_id, ended.attempt, ended.leg, result, detail="a late answer")
        delay_ns = self._around.rng.choice(_LATE_NS)
        self._agenda.after(delay_ns, self._tell_late, self._life, owner, late)

    def _tell_late(self, life: int, owner: _Owner, late: events.LegEnded) -> None:
        """Deliver a late report, only to the visit it belongs to: a request forwarded here twice counts its attempts
        anew."""
        if life == self._life and self._owners.get(late.request_id) in (owner, None):
            self.tell(events.FirstToken(late.request_id, late.attempt, late.leg))
            self.tell(late)

    def _start_leg(self, order: ordered.StartLeg) -> None:
        owner = self._owners.get(order.request_id)
        if owner is None:
            self.tell(
                events.LegEnded(
                    order.request_id, order.attempt, order.leg, LegResult.CANCELLED, detail="the owner left"
                )
            )
            return
        leg = _Leg(self, owner, order)
        owner.legs[leg.key] = leg
        if order.target.kind is TargetKind.REPLICA:
            self._push(leg, self._around.engines[ReplicaId(order.target.id)])
        else:
            self._forward(leg, self._around.gateways[GatewayId(order.target.id)])

    def _push(self, leg: _Leg, engine: SimReplica) -> None:
        order = leg.order
        run_id = f"{order.request_id} {self.gateway_id} {order.attempt}.{order.leg}"
        upstream = leg.owner.upstream
        if isinstance(upstream, _Leg) and upstream.order.attempt > 1:  # the request may have been here before
            run_id += f" of {upstream.order.attempt}"
        line = self._around.network.connect(
            self.region, engine.spec.place.region, leg.broke, lambda _: engine.abort(run_id)
        )
        leg.line = line
        run = EngineRun(
            run_id,
            self._engine_request(leg, run_id),
            on_first_token=lambda run: self._begun(line, leg, engine, run),
            on_finished=lambda: line.to_near(leg.finished),
            on_rejected=lambda rejection: line.to_near(leg.rejected, rejection, engine.config.context_tokens_max),
            on_lost=line.close_far,
            is_followed=self._around.resumes and order.role is not LegRole.PREFILL,
        )
        if run.is_followed:
            leg.run = run, engine
        if order.role is LegRole.PREFILL:
            leg.owner.reading = run
        elif order.role is LegRole.DECODE:
            leg.decoding = engine, run_id
            self._hand_over(leg, run)
        line.to_far(engine.submit, run)

    def _engine_request(self, leg: _Leg, run_id: str) -> EngineRequest:
        ask = leg.owner.ask
        if leg.order.role is not LegRole.PREFILL:
            tokens = ask.prompt_tokens + leg.said, ask.output_tokens - leg.said
            return EngineRequest(run_id, *tokens, ask.whole.names)
        pool = self._around.pools[self._around.engines[ReplicaId(leg.order.target.id)].spec.pool]
        return EngineRequest(run_id, ask.prompt_tokens + leg.said, 1, ask.whole.names, lease_ns=pool.lease_ns)

    def _hand_over(self, leg: _Leg, run: EngineRun) -> None:
        """Tell a decode run where its prompt was computed: engines meet by the prefill's answer, or by what both were
        told."""
        order, reading = leg.order, leg.owner.reading
        assert order.prefill is not None, "somebody reads the prompt"
        assert order.connector is not None, "it is handed over somehow"
        assert reading is not None, "the prompt was asked for first"
        source = self._around.engines[ReplicaId(order.prefill.id)]
        assert isinstance(source, SimEngine), "a prefill worker"
        run.handoff = Handoff(source, reading.run_id)
        run.waits_for_its_prompt = not order.connector.is_sequential

    def _begun(self, line: Line, leg: _Leg, engine: SimReplica, run: EngineRun) -> None:
        """Report a run's first token, except the single token of a prefill."""
        if leg.order.role is not LegRole.PREFILL:
            read_by = leg.owner.reading if leg.order.role is LegRole.DECODE else run
            cached_tokens = 0 if read_by is None else read_by.cached_tokens or 0
            line.to_near(leg.first_token, RanAt(engine.spec.place.region, engine.replica_id, cached_tokens))

    def _progress(self, pool: PoolName) -> Iterator[events.DecodeProgress]:
        for (request_id, attempt), (engine, run_id) in self.decoding.items():
            if engine.spec.pool == pool:
                yield events.DecodeProgress(request_id, attempt, engine.generated(run_id))

    def _forward(self, leg: _Leg, peer: SimGateway) -> None:
        order, ask = leg.order, leg.owner.ask
        assert order.hops is not None
        assert order.stamp is not None
        line = self._around.network.connect(
            self.region, peer.region, leg.broke, lambda _: peer.upstream_left(line, order.request_id)
        )
        leg.line = line
        left_ns = order.deadline_ns - self._agenda.now_ns
        line.to_far(peer.forward_arrives, leg, ask, order.hops, order.stamp, left_ns)
        self._agenda.after(_ACCEPT_TIMEOUT_NS, leg.not_accepted_in_time)

    def _stop_leg(self, order: ordered.StopLeg) -> None:
        owner = self._owners.get(order.request_id)
        leg = None if owner is None else owner.legs.get((order.attempt, order.leg))
        if leg is not None:
            self._cancel(leg)

    def _cancel(self, leg: _Leg) -> None:
        leg.close("cancelled")
        leg.end(LegResult.CANCELLED, "stopped")

    # Heartbeats and probes

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
        self.tell(events.TargetLost(peer_target(gateway_id), "its connection was reset"))
        if self.control is not None:
            self.control.peer_gone(gateway_id)

    def _publish(self, report: LoadReport) -> None:
        for peer in self.spec.peers:
            if self.heartbeat_loss_share and self._around.rng.random() < self.heartbeat_loss_share:
                continue
            other = self._around.gateways[peer.gateway_id]
            if self.heartbeat_delay_ns:
                self._agenda.after(self.heartbeat_delay_ns, self._send_heartbeat, other, report)
            else:
                self._send_heartbeat(other, report)

    def _send_heartbeat(self, other: SimGateway, report: LoadReport) -> None:
        delay_ns = self._around.network.datagram_delay_ns(self.region, other.region)
        if delay_ns is not None:
            other.heartbeats.expect(report.told_to(other.spec.place), self._agenda.now_ns + delay_ns)

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
        self._agenda.after(self._around.probe_interval_ns, self._probe, life)

    def _sample(self, life: int, region: RegionName, probes: Probes, sent_ns: int, way_ns: int) -> None:
        if life != self._life or self._around.network.is_cut(region, self.region):
            return
        observations = probes.news(sent_ns)
        if observations:
            self._agenda.after(way_ns, self._observed, life, probes, observations)

    def _observed(self, life: int, probes: Probes, observations: tuple[ReplicaObservation, ...]) -> None:
        if life == self._life:
            probes.tell(observations)
            self.tell(events.ReplicasObserved(observations))
