"""Counts what the core was told and what it ordered, for Prometheus. It decides nothing and holds no request's text.

Every label is bounded: peers nobody configured and models that nobody serves, or too many of them, are counted as
`other`; tenants and request ids never appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.description import CoreGauges
from gateway.core.effects import (
    AcceptForward,
    Effect,
    EndRequest,
    PublishLoad,
    RecordShadow,
    RefuseForward,
    StartLeg,
    StopLeg,
)
from gateway.core.events import (
    AssignmentApplied,
    ConfigApplied,
    DrainRequested,
    Event,
    FirstToken,
    ForwardArrived,
    LegAccepted,
    LegEnded,
    LockdownChanged,
    PeersObserved,
    PolicyApplied,
    ReplicasObserved,
    RequestAbandoned,
    RequestArrived,
    ResponseStored,
    TargetLost,
    TimePassed,
)
from gateway.core.vocabulary import (
    Decision,
    GatewayId,
    LegResult,
    RequestId,
    RequestProfile,
    Target,
    TargetKind,
)
from gateway.ground.series import Distribution, Tally
from gateway.records.model_labels import OTHER, ModelLabels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECOND_NS = 1_000_000_000
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PER_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
_SHARE = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_DELAY_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


@dataclass(slots=True)
class _Followed:
    """What is remembered of a request until it and its attempts are over."""

    model: str
    arrived_ns: int
    source: str
    open_attempts: dict[int, Target] = field(default_factory=dict)
    first_token_ns: int | None = None
    last_result: LegResult | None = None
    ended: bool = False


class Metrics:
    """One gateway's metrics in a registry of its own. An observer of the driver."""

    def __init__(self, gauges: Callable[[], CoreGauges]) -> None:
        self.registry = CollectorRegistry()
        self._requests: dict[RequestId, _Followed] = {}
        self._models = ModelLabels()
        self._peers: set[GatewayId] = set()
        self._rtt_ns: dict[GatewayId, int] = {}
        self._define_counters()
        self._define_histograms()
        self._closed = Gauge(
            "nightside_policy_closed", "1 while the region runs without a usable policy.", registry=self.registry
        )
        self._locked_down = Gauge(
            "nightside_lockdown", "1 while an operator has stopped all forwarding.", registry=self.registry
        )
        self._journal_stopped = Gauge(
            "nightside_journal_stopped",
            "1 once the journal could not be written; a restart begins another.",
            registry=self.registry,
        )
        self._expiry = Gauge(
            "nightside_certificate_expiry_seconds",
            "Until a certificate in use expires; below 0 it has.",
            ["role"],
            registry=self.registry,
        )
        self.registry.register(_Levels(gauges, self._rtt_ns))
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        """The metrics page, of CONTENT_TYPE."""
        return generate_latest(self.registry)

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        self._take_event(now_ns, event)
        for effect in effects:
            self._take_effect(now_ns, event, effect)

    def loop_delayed(self, delay_ns: int) -> None:
        """How much later than asked the event loop came back."""
        self._loop_delay.observe(max(delay_ns, 0) / _SECOND_NS)

    def restarted(self, task: str) -> None:
        """A supervised loop failed and runs again."""
        self._restarts.add(task)

    def reloaded(self, part: str, is_in_force: bool) -> None:
        """A part was read anew: what it held is in force now, or was refused."""
        self._reloads.add(part, "applied" if is_in_force else "refused")

    def peer_refused(self, seen_by: str) -> None:
        """A caller, or whoever answered a call of ours, was not whom it should be."""
        self._refused_peers.add(seen_by)

    def journal_stopped(self) -> None:
        """It could not be written, and has ended."""
        self._journal_stopped.set(1)

    def follow_certificate(self, role: str, left_s: Callable[[], float]) -> None:
        """Ask at each scrape how long the certificate in use is still valid."""
        self._expiry.labels(role).set_function(left_s)

    def _define_counters(self) -> None:
        self._ended = self._counter("requests", "Requests by how they ended.", "model", "source", "outcome")
        self._attempts = self._counter("attempts", "Attempts by how they ended.", "target", "result")
        self._placements = self._counter("placements", "Attempts by the rule that placed them.", "reason")
        self._retries = self._counter("retries", "Further attempts, by what ended the one before.", "after")
        self._sent = self._counter("forwards_sent", "Requests sent to a peer.", "peer")
        self._shadows = self._counter("forwards_shadowed", "Forwards that shadow mode only recorded.", "peer")
        self._refused = self._counter("forwards_refused", "Forwards that a peer refused.", "peer", "reason")
        self._received = self._counter("forwards_received", "Forwards from a peer, and our answer.", "peer", "answer")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of completed requests.", "model")
        self._output_tokens = self._counter("output_tokens", "Output tokens of completed requests.", "model")
        self._lost = self._counter("targets_lost", "Connections to a target that broke.", "target")
        self._refused_peers = self._counter(
            "peers_refused", "Gateways refused for their certificate or for who they claim to be.", "seen_by"
        )
        self._reloads = self._counter("reloads", "Files read anew while the gateway ran.", "part", "result")
        self._restarts = self._counter("supervised_restarts", "Background loops that failed and run again.", "task")

    def _define_histograms(self) -> None:
        self._first_token = self._histogram(
            "first_token_seconds", "From arrival to the first token of a stream.", _FIRST_TOKEN_S, "model", "ran"
        )
        self._per_token = self._histogram(
            "output_token_seconds", "Mean time per output token after the first.", _PER_TOKEN_S, "model", "ran"
        )
        self._waited = self._histogram("queue_wait_seconds", "From arrival to placement.", _WAIT_S, "model")
        self._matched = self._histogram("prefix_matched_share", "Share of the prompt known at the target.", _SHARE)
        self._loop_delay = self._histogram("event_loop_delay_seconds", "Lateness of the event loop.", _DELAY_S)

    def _counter(self, name: str, words: str, *labels: str) -> Tally:
        tally = Tally(f"nightside_{name}", words, labels)
        self.registry.register(tally)
        return tally

    def _histogram(self, name: str, words: str, bounds: tuple[float, ...], *labels: str) -> Distribution:
        distribution = Distribution(f"nightside_{name}", words, bounds, labels)
        self.registry.register(distribution)
        return distribution

    def _take_event(self, now_ns: int, event: Event) -> None:
        match event:
            case RequestArrived():
                self._follow(event.profile, now_ns, "client")
            case FirstToken():
                self._first_token_came(event, now_ns)
            case LegEnded():
                self._attempt_ended(event, now_ns)
            case AssignmentApplied():
                self._assigned(event)
            case PeersObserved():
                self._peers_observed(event)
            case PolicyApplied():
                self._closed.set(bool(event.policy.closed_reason))
            case LockdownChanged():
                self._locked_down.set(event.active)
            case TargetLost():
                self._lost.add(event.target.kind)
            case (
                ForwardArrived()
                | ConfigApplied()
                | DrainRequested()
                | ReplicasObserved()
                | RequestAbandoned()
                | LegAccepted()
                | ResponseStored()
                | TimePassed()
            ):
                pass
            case _:
                assert_never(event)

    def _take_effect(self, now_ns: int, event: Event, effect: Effect) -> None:
        match effect:
            case StartLeg():
                self._leg_started(effect)
            case EndRequest():
                self._request_ended(effect)
            case AcceptForward():
                if isinstance(event, ForwardArrived):
                    self._follow(event.profile, now_ns, "peer")
                    self._received.add(self._peer(event.origin_gateway_id), "accepted")
            case RefuseForward():
                if isinstance(event, ForwardArrived):
                    self._received.add(self._peer(event.origin_gateway_id), effect.reason)
            case RecordShadow():
                self._shadows.add(self._peer(GatewayId(effect.target.id)))
            case StopLeg() | PublishLoad():
                pass
            case _:
                assert_never(effect)

    def _follow(self, profile: RequestProfile, now_ns: int, source: str) -> None:
        self._requests[profile.request_id] = _Followed(self._models.of(profile.model), now_ns, source)

    def _leg_started(self, order: StartLeg) -> None:
        self._placements.add(order.decision.reason)
        if order.target.kind is TargetKind.PEER:
            self._sent.add(self._peer(GatewayId(order.target.id)))
        followed = self._requests.get(order.request_id)
        if followed is None:
            return
        followed.open_attempts[order.attempt] = order.target
        if followed.last_result is None:
            self._waited.observe(order.decision.waited_ns / _SECOND_NS, followed.model)
            self._matched.observe(matched_share(order.decision))
        else:
            self._retries.add(followed.last_result)

    def _first_token_came(self, event: FirstToken, now_ns: int) -> None:
        followed = self._requests.get(event.request_id)
        if followed is None or event.attempt not in followed.open_attempts:
            return
        followed.first_token_ns = now_ns
        ran = _ran(followed.open_attempts[event.attempt])
        self._first_token.observe((now_ns - followed.arrived_ns) / _SECOND_NS, followed.model, ran)

    def _attempt_ended(self, event: LegEnded, now_ns: int) -> None:
        followed = self._requests.get(event.request_id)
        target = followed.open_attempts.pop(event.attempt, None) if followed is not None else None
        if followed is None or target is None:
            return
        followed.last_result = event.result
        self._attempts.add(target.kind, event.result)
        if event.refusal is not None:
            self._refused.add(self._peer(GatewayId(target.id)), event.refusal)
        if event.result is LegResult.COMPLETED:
            self._count_tokens(followed, event, _ran(target), now_ns)
        self._forget_if_over(event.request_id, followed)

    def _count_tokens(self, followed: _Followed, event: LegEnded, ran: str, now_ns: int) -> None:
        self._prompt_tokens.add(followed.model, amount=event.prompt_tokens or 0)
        output_tokens = event.output_tokens or 0
        self._output_tokens.add(followed.model, amount=output_tokens)
        if output_tokens > 1 and followed.first_token_ns is not None:
            per_token_ns = (now_ns - followed.first_token_ns) / (output_tokens - 1)
            self._per_token.observe(per_token_ns / _SECOND_NS, followed.model, ran)

    def _request_ended(self, end: EndRequest) -> None:
        followed = self._requests.get(end.request_id)
        if followed is None:
            return
        followed.ended = True
        self._ended.add(followed.model, followed.source, end.outcome)
        self._forget_if_over(end.request_id, followed)

    def _forget_if_over(self, request_id: RequestId, followed: _Followed) -> None:
        if followed.ended and not followed.open_attempts:
            del self._requests[request_id]

    def _assigned(self, event: AssignmentApplied) -> None:
        self._peers = {peer.gateway_id for peer in event.peers}
        for gone in self._rtt_ns.keys() - self._peers:
            del self._rtt_ns[gone]
        self._models.assign((model for replica in event.replicas for model in replica.models), self._peers)

    def _peers_observed(self, event: PeersObserved) -> None:
        for observation in event.observations:
            report = observation.report
            if report.gateway_id in self._peers:
                self._rtt_ns[report.gateway_id] = observation.rtt_ns
                self._models.hear(report.gateway_id, report.capacities)

    def _peer(self, gateway_id: GatewayId) -> str:
        return gateway_id if gateway_id in self._peers else OTHER


class _Levels(Collector):
    """Asks the core for its levels at each scrape."""

    def __init__(self, gauges: Callable[[], CoreGauges], rtt_ns: dict[GatewayId, int]) -> None:
        self._gauges = gauges
        self._rtt_ns = rtt_ns

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges()
        yield _level("queue_length", "Requests that wait for a target.", gauges.queue_length)
        yield _level("requests_held", "Requests that wait or run.", gauges.requests)
        yield _level("attempts_in_flight", "Attempts at replicas and peers.", gauges.attempts)
        yield _level(
            "prefix_index_bytes", "Memory of the prefix index, as it counts itself.", gauges.prefix_index_bytes
        )
        yield _level("prefix_index_blocks", "Prefix blocks known.", gauges.prefix_index_blocks)
        yield _level("replicas", "Replicas assigned to this gateway.", gauges.replicas)
        yield _level("replicas_available", "Replicas that would take a request now.", gauges.replicas_available)
        yield _level("peers", "Peers known to this gateway.", gauges.peers)
        yield _level("peers_usable", "Peers that are fresh, accepting and trusted.", gauges.peers_usable)
        yield _ages("probe_age_seconds", "Since the last probe of a replica.", "replica", gauges.probe_age_ns.items())
        yield _ages("heartbeat_age_seconds", "Since a peer measured its load.", "peer", gauges.heartbeat_age_ns.items())
        yield _ages("peer_rtt_seconds", "Median round trip to a peer.", "peer", self._rtt_ns.items())


def matched_share(decision: Decision) -> float:
    """The share of the prompt's blocks that the target was thought to hold already."""
    return decision.matched_blocks / decision.prompt_blocks if decision.prompt_blocks else 0.0


def _ran(target: Target) -> str:
    return "forward" if target.kind is TargetKind.PEER else "local"


def _level(name: str, words: str, value: int) -> Metric:
    return GaugeMetricFamily(f"nightside_{name}", words, value=value)


def _ages(name: str, words: str, label: str, ages_ns: Iterable[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(f"nightside_{name}", words, labels=[label])
    for key, age_ns in ages_ns:
        family.add_metric([key], age_ns / _SECOND_NS)
    return family
