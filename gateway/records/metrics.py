"""Metrics of one gateway for Prometheus, counted from the core's events and effects. It decides nothing and holds no
request's text.

Every label is bounded: peers that are not configured, models that no gateway serves, tenants that logs may not name,
and models and tenants beyond a maximum are counted as `other`; request ids never appear.

Values that are summed over gateways count once. A client's request counts at the gateway it came to, wherever it ran. A
gateway that ran it for another gateway counts it separately, in series that begin with `forwards_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core import events
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.description import CoreGauges, ReplicaCondition, SharingFigures
from gateway.core.kernel.requests import RequestRecord
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import (
    NO_HINTS,
    Decision,
    GatewayId,
    LegRole,
    ModelName,
    Outcome,
    ReplicaId,
    RequestId,
    RequestProfile,
    TargetKind,
    TenantName,
)
from gateway.records.forward_rates import ForwardDirection
from gateway.records.model_labels import OTHER, ModelLabels
from gateway.records.sharing_metrics import SharingLevels
from gateway.records.tenant_labels import TenantLabels
from gateway.records.trace_metrics import TraceMetrics
from gateway.records.usage_metrics import RAN, SHARE, UsageMetrics
from gateway.request.driver import GatewayStep, GatewaySubscriptions
from gateway.request.legs import RequestSummary
from mesh.series import CounterSeries, Described, Distribution, Level, described
from mesh.totals import FIRST_TOKEN_BOUNDS_S, Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECOND_NS = 1_000_000_000
_WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
_NO_ERRORS = frozenset({Outcome.COMPLETED, Outcome.CLIENT_ERROR, Outcome.ABANDONED})
"""Outcomes for which this mesh is not to blame."""
_DELAY_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class GatewayMetrics:
    """Metrics of one gateway in a registry of their own. What happens to a request's legs is counted as it happens, and
    the request when it is finished."""

    def __init__(
        self, gauges: Callable[[], CoreGauges], core: GatewayState, requests: Mapping[RequestId, RequestRecord]
    ) -> None:
        """`requests` has the records of the requests that are not finished."""
        self.registry = CollectorRegistry()
        self._core = core
        self._requests = requests
        self._models = ModelLabels()
        self._tenants = TenantLabels()
        self._peers: set[GatewayId] = set()
        self._rtt_ns: dict[GatewayId, int] = {}
        self._define_counters()
        self._define_histograms()
        self.usage = UsageMetrics(self.registry, self._models, self.tenant_label)
        self.traces = TraceMetrics(self.registry)
        self._define_levels()
        self.subscriptions: GatewaySubscriptions = self._subscribe()
        self.registry.register(_Levels(gauges, self._rtt_ns, self._models))
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        """Render the metrics page as CONTENT_TYPE."""
        return generate_latest(self.registry)

    def catalogue(self) -> list[Described]:
        """Descriptions of every series that the page can have, with or without traffic, in the order of the page."""
        return [described(family) for family in self.registry.collect()]

    def refused(self, reason: str, tenant: TenantName | None) -> None:
        """Count a request that was refused before it reached the core. `reason` is one of a closed set; `tenant` is
        None where it is unknown."""
        self._door.add(reason, "" if tenant is None else self.tenant_label(tenant))

    def loop_delayed(self, delay_ns: int) -> None:
        """Observe the lateness of the event loop against a timer."""
        self._loop_delay.observe(max(delay_ns, 0) / _SECOND_NS)

    def restarted(self, task: str) -> None:
        """Count a restart of a supervised loop that failed."""
        self._restarts.add(task)

    def reloaded(self, part: str, is_in_force: bool) -> None:
        """Count a reload of a part: its new content is in force, or was refused."""
        self._reloads.add(part, "applied" if is_in_force else "refused")
        self._reload_refused.set(not is_in_force, part)

    def peer_refused(self, seen_by: str, reason: str) -> None:
        """Count a gateway refused for its identity: it called this gateway (`called`), or this gateway called it
        (`caller`)."""
        self._refused_peers.add(seen_by, reason)

    def forwards_so_far(self) -> dict[tuple[str, ForwardDirection], int]:
        """Counts since the start, by peer: forwards sent to it, and its forwards accepted here."""
        sent = {(peer, ForwardDirection.OUT): int(count) for (peer,), count in self._sent.counts()}
        taken = (each for each in self._received.counts() if each[0][1] == "accepted")
        return sent | {(peer, ForwardDirection.IN): int(count) for (peer, _), count in taken}

    def totals(self) -> Totals:
        """Counts since the start of requests that clients sent here, from the counters of the metrics page."""
        ended = [(outcome, int(count)) for (_, outcome), count in self._ended.counts()]
        return Totals(
            requests=sum(count for _, count in ended),
            errors=sum(count for outcome, count in ended if outcome not in _NO_ERRORS),
            forwards=sum(int(count) for _, count in self._sent.counts()),
            first_tokens=self._first_token.summed(),
            waiting=len(self._core.waiting),
        )

    def forward_malformed(self, origin: GatewayId) -> None:
        """Count a forward that no gateway may send or that cannot be read."""
        self._malformed.add(self._peer(origin))

    def exchange_ignored(self, peer: GatewayId) -> None:
        """Count a frame on a forward that has ended or never existed."""
        self._frames_ignored.add(self._peer(peer))

    def exchange_broken(self, seen_by: str, peer: GatewayId) -> None:
        """Count a shared forwarding stream that ended early, as seen by the `caller`, which opened it, or by the
        `called`."""
        self._exchanges_broken.add(self._peer(peer), seen_by)

    def residency_broken(self, peer: GatewayId, *_: object) -> None:
        """Count an answer of a peer that says it ran in a place where the request must not run."""
        self._violations.add(self._peer(peer))

    def journal_stopped(self) -> None:
        """Note that the journal could not be written and has ended."""
        self._journal_stopped.set(1)

    def descriptors_exhausted(self) -> None:
        """Count a sample at which the process had no free file descriptor."""
        self._no_descriptor.add()

    def log_lines_lost(self, count: int) -> None:
        """Count lines of the log that were dropped."""
        self._lines_lost.add(amount=count)

    def follow_sharing(self, figures: Callable[[], SharingFigures]) -> None:
        """Read at each scrape how the fleet is shared between tenants and classes."""
        self.registry.register(SharingLevels(figures, self.tenant_label, self._models.of))

    def follow_certificate(self, role: str, left_s: Callable[[], float]) -> None:
        """Read at each scrape how long the certificate in use is still valid."""
        self._expiry.follow(left_s, role)

    def follow_readiness(self, is_ready: Callable[[], bool]) -> None:
        """Read at each scrape whether load balancers are told to send traffic here."""
        self._ready.follow(is_ready)

    def follow_places(self, refused: Callable[[], int]) -> None:
        """Read at each scrape how many replicas and peers state a place that contradicts the operators' table."""
        self._places_refused.follow(refused)

    def follow_predecessor(self, requests_left: Callable[[], int]) -> None:
        """Read at each scrape how many requests still run in the process that this one took over from."""
        self._predecessor_requests.follow(requests_left)

    def _define_counters(self) -> None:
        self._ended = self._counter(
            "requests",
            "Client requests that ended, by model and outcome, at the gateway that received them.",
            "model",
            "outcome",
        )
        self._stored = self._counter(
            "stored_response_calls",
            "Calls that read, cancel or delete stored responses, by outcome; they are not counted as requests.",
            "source",
            "outcome",
        )
        self._door = self._counter(
            "refusals",
            "Requests refused before placement (authentication, limits, malformed requests), by error code.",
            "reason",
            "tenant",
        )
        self._attempts = self._counter(
            "attempts",
            "Legs opened by this gateway, by kind of target and result.",
            "target",
            "result",
        )
        self._parts = self._counter(
            "parts",
            "Legs of disaggregated pools, which run only the prefill or the decode, by result.",
            "role",
            "result",
        )
        self._placements = self._counter(
            "placements", "Legs opened by this gateway, by the placement rule that chose the target.", "reason"
        )
        self._retries = self._counter("retries", "Retries, by the result of the attempt before.", "after")
        self._sent = self._counter("forwards_sent", "Requests forwarded to a peer.", "peer")
        self._forwards_ended = self._counter(
            "forwards_ended", "Forwards accepted from peers that ended, by model and outcome.", "model", "outcome"
        )
        self._shadows = self._counter(
            "forwards_shadowed", "Forwards that shadow overflow recorded without sending them.", "peer"
        )
        self._refused = self._counter("forwards_refused", "Forwards that a peer refused, by reason.", "peer", "reason")
        self._received = self._counter(
            "forwards_received", "Forwards received from a peer, by this gateway's answer.", "peer", "answer"
        )
        self._lost = self._counter("targets_lost", "Connections to replicas or peers that broke.", "target")
        self._refused_peers = self._counter(
            "peers_refused",
            "Calls refused for the identity of the other gateway, by reason.",
            "seen_by",
            "reason",
        )
        self._no_descriptor = self._counter(
            "descriptors_exhausted", "Samples (ten per second) at which the process had no free file descriptor."
        )
        self._mismatches = self._counter(
            "model_identity_mismatches",
            "Requests that a failure kept from targets which serve another model under the same name, by model.",
            "model",
        )
        self._hinted = self._counter("hints", "Client requests that ended and had a hint, by hint.", "hint")
        self._lines_lost = self._counter(
            "log_lines_lost", "Log lines dropped because standard error was blocked for too long."
        )
        self._malformed = self._counter("forwards_malformed", "Forwards refused because they are malformed.", "peer")
        self._frames_ignored = self._counter(
            "exchange_frames_ignored",
            "Frames on a shared forwarding stream for a forward that has ended or is unknown.",
            "peer",
        )
        self._exchanges_broken = self._counter(
            "exchanges_broken",
            "Shared forwarding streams that closed unexpectedly, together with their forwards.",
            "peer",
            "seen_by",
        )
        self._violations = self._counter(
            "residency_violations",
            "Answers of a peer that name a place where residency forbids the request to run.",
            "peer",
        )
        self._reloads = self._counter("reloads", "Files reloaded while the gateway runs, by result.", "part", "result")
        self._restarts = self._counter(
            "supervised_restarts", "Background tasks that failed and were restarted.", "task"
        )

    def _define_histograms(self) -> None:
        self._first_token = self._histogram(
            "first_token_seconds",
            "Time from the arrival of a client's request to the first token of its stream.",
            FIRST_TOKEN_BOUNDS_S,
            "model",
            "ran",
        )
        self._waited = self._histogram(
            "queue_wait_seconds",
            "Time from the arrival of a request at this gateway to its first placement.",
            _WAIT_S,
            "model",
            "source",
        )
        self._matched = self._histogram(
            "prefix_matched_share",
            "Share of the prompt that the prefix index predicts to be cached at the chosen target.",
            SHARE,
            "model",
            "ran",
        )
        self._loop_delay = self._histogram("event_loop_delay_seconds", "Delay of timers on the event loop.", _DELAY_S)

    def _define_levels(self) -> None:
        self._closed = self._level(
            "policy_closed", "1 while the region has no valid residency policy, so that forwarding is disabled."
        )
        self._reload_refused = self._level(
            "reload_refused", "1 while a changed file on disk is refused and the one before is in force.", "part"
        )
        self._journal_stopped = self._level(
            "journal_stopped", "1 after writing the journal failed; a restart begins a new one."
        )
        self._draining = self._level(
            "draining", "1 while this gateway drains: it refuses new requests and finishes running ones."
        )
        self._ready = self._level("ready", "1 while the readiness check `/ready` succeeds.")
        self._places_refused = self._level(
            "places_refused",
            "Replicas and peers excluded because their region or jurisdiction contradicts the operators' table.",
        )
        self._predecessor_requests = self._level(
            "predecessor_requests", "Requests still running in the previous process of this gateway after a takeover."
        )
        self._expiry = self._level(
            "certificate_expiry_seconds",
            "Time until a certificate in use expires; negative after it has expired.",
            "role",
        )

    def _counter(self, name: str, words: str, *labels: str) -> CounterSeries:
        tally = CounterSeries(f"nightside_{name}", words, labels)
        self.registry.register(tally)
        return tally

    def _histogram(self, name: str, words: str, bounds: tuple[float, ...], *labels: str) -> Distribution:
        distribution = Distribution(f"nightside_{name}", words, bounds, labels)
        self.registry.register(distribution)
        return distribution

    def _level(self, name: str, words: str, *labels: str) -> Level:
        level = Level(f"nightside_{name}", words, labels)
        self.registry.register(level)
        return level

    def _subscribe(self) -> GatewaySubscriptions:
        return {
            events.ForwardArrived: self._forward_arrived,
            events.PeersObserved: self._peers_observed,
            events.AssignmentApplied: self._assigned,
            events.PolicyApplied: lambda _, event: self._closed.set(bool(event.policy.closed_reason)),
            events.TargetLost: lambda _, event: self._lost.add(event.target.kind),
            events.DrainRequested: lambda *_: self._draining.set(1),
            events.DrainLifted: lambda *_: self._draining.set(0),
            events.FirstToken: self._first_token_came,
            events.LegEnded: self._leg_ended,
            ordered.StartLeg: self._leg_started,
            ordered.RecordShadow: lambda _, effect: self._shadows.add(self._peer(GatewayId(effect.target.id))),
        }

    def _forward_arrived(self, step: GatewayStep, event: events.ForwardArrived) -> None:
        refused = [each.reason for each in step.effects or () if isinstance(each, ordered.RefuseForward)]
        self._received.add(self._peer(event.origin_gateway_id), refused[0] if refused else "accepted")

    def _leg_started(self, _step: GatewayStep, order: ordered.StartLeg) -> None:
        """Count a started leg. Further legs of an attempt did not wait and are no retry, so they count as placements
        only."""
        self._placements.add(order.decision.reason)
        if order.target.kind is TargetKind.PEER:
            self._sent.add(self._peer(GatewayId(order.target.id)))
        record = self._requests.get(order.request_id)
        if record is None or order.leg > 1:
            return
        if order.attempt > 1:
            after = record.ended_by(order.attempt - 1)
            if after is not None:
                self._retries.add(after)
        elif not record.is_control:
            model, source = self._models.of(record.model), "client" if record.origin is None else "peer"
            if record.keeps_yielding and record.origin is None:
                source = "batch"  # a line waits for as long as it takes
            self._waited.observe(order.decision.waited_ns / _SECOND_NS, model, source)
            self._matched.observe(matched_share(order.decision), model, RAN[order.target.kind])

    def _first_token_came(self, step: GatewayStep, event: events.FirstToken) -> None:
        record = self._requests.get(event.request_id)
        leg = None if record is None else record.first_leg
        if record is None or leg is None or record.origin is not None or record.is_control:
            return
        if (leg.attempt, leg.number, record.first_token_ns) == (event.attempt, event.leg, step.now_ns):
            after_s = (step.now_ns - record.arrived_ns) / _SECOND_NS
            self._first_token.observe(after_s, self._models.of(record.model), RAN[leg.target.kind])

    def _leg_ended(self, _step: GatewayStep, event: events.LegEnded) -> None:
        record = self._requests.get(event.request_id)
        for leg in () if record is None else record.legs:
            if leg.ended is event:
                self._attempts.add(leg.target.kind, event.result)
                if leg.role is not LegRole.WHOLE:
                    self._parts.add(leg.role, event.result)
                if event.refusal is not None:
                    self._refused.add(self._peer(GatewayId(leg.target.id)), event.refusal)

    def on_finished(
        self,
        profile: RequestProfile,
        _end: ordered.EndRequest,
        _summary: RequestSummary,
        record: RequestRecord | None,
    ) -> None:
        """Count the end of a request, unless a crash of the core cut it off."""
        if record is None or record.end is None:
            return
        if record.identity_mismatch:
            self._mismatches.add(self._models.of(record.model))
        is_own, outcome = record.origin is None, record.end.outcome
        if is_own and profile.hints is not NO_HINTS:
            for kind in profile.hints.given():
                self._hinted.add(kind)
        if record.is_control:
            self._stored.add("client" if is_own else "peer", outcome)
        else:
            (self._ended if is_own else self._forwards_ended).add(self._models.of(record.model), outcome)

    def _assigned(self, _step: GatewayStep, event: events.AssignmentApplied) -> None:
        self._peers = {peer.gateway_id for peer in event.peers}
        for gone in self._rtt_ns.keys() - self._peers:
            del self._rtt_ns[gone]
        self._models.assign((model for replica in event.replicas for model in replica.models), self._peers)

    def _peers_observed(self, _step: GatewayStep, event: events.PeersObserved) -> None:
        for observation in event.observations:
            report = observation.report
            if report.gateway_id in self._peers:
                self._rtt_ns[report.gateway_id] = observation.rtt_ns
                self._models.hear(report.gateway_id, report.capacities)

    def _peer(self, gateway_id: GatewayId) -> str:
        return gateway_id if gateway_id in self._peers else OTHER

    def tenant_label(self, tenant: TenantName) -> str:
        return self._tenants.of(tenant, may_be_named=self._core.policy.logging.tenant)


class _Levels(Collector):
    """Collector that reads the core's levels at each scrape."""

    def __init__(self, gauges: Callable[[], CoreGauges], rtt_ns: dict[GatewayId, int], models: ModelLabels) -> None:
        self._gauges = gauges
        self._rtt_ns = rtt_ns
        self._models = models

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges()
        yield self._queue_lengths(gauges.queue_lengths)
        yield _level("requests_open", "Requests in flight: waiting or running.", gauges.requests)
        yield _level("attempts_in_flight", "Attempts in flight, each with one leg or more.", gauges.attempts)
        yield _level("prefix_index_bytes", "Estimated memory of the prefix index.", gauges.prefix_index_bytes)
        yield _level("prefix_index_blocks", "Prefix blocks in the prefix index.", gauges.prefix_index_blocks)
        yield _level("replicas", "Replicas assigned to this gateway.", gauges.replicas)
        yield _level("replicas_available", "Replicas that can be sent a request now.", gauges.replicas_available)
        yield _level("peers", "Peers known to this gateway.", gauges.peers)
        yield _level(
            "peers_usable",
            "Peers that can be sent forwards: with a fresh heartbeat, not draining, and with a valid identity.",
            gauges.peers_usable,
        )
        yield _states(
            "replica_state",
            "1 for the current state of each replica, 0 for its other states.",
            gauges.replica_conditions,
        )
        yield _ages(
            "probe_age_seconds",
            "Time since the last successful probe of a replica, or since its assignment if there was none.",
            "replica",
            gauges.probe_age_ns.items(),
        )
        yield _ages(
            "heartbeat_age_seconds",
            "Age of the load report in the last heartbeat of a peer.",
            "peer",
            gauges.heartbeat_age_ns.items(),
        )
        yield _ages("peer_rtt_seconds", "Median round trip time to a peer.", "peer", self._rtt_ns.items())
        yield _counts(
            "replica_in_flight", "Legs of this gateway in flight at a replica.", "replica", gauges.in_flight.items()
        )
        yield _counts(
            "replica_pending",
            "Requests queued in a replica's engine, as the engine reports.",
            "replica",
            gauges.pending.items(),
        )
        yield _counts(
            "replica_held",
            "Requests that this gateway holds for one specific replica, because waiting for it is cheapest.",
            "replica",
            gauges.held.items(),
        )
        yield _counts(
            "replica_room",
            "Requests that a replica's engine could start at once; negative: the number that waits in the "
            "engine for a slot.",
            "replica",
            gauges.rooms.items(),
        )

    def _queue_lengths(self, lengths: Mapping[ModelName, int]) -> Metric:
        by_label = dict.fromkeys(self._models.known(), 0)
        for model, length in lengths.items():
            label = self._models.of(model)
            by_label[label] = by_label.get(label, 0) + length
        return _counts("queue_length", "Requests waiting for a target, by model.", "model", by_label.items())


def matched_share(decision: Decision) -> float:
    """Share of the prompt's blocks that the target was estimated to have cached."""
    return decision.matched_blocks / decision.prompt_blocks if decision.prompt_blocks else 0.0


def _level(name: str, words: str, value: int) -> Metric:
    return GaugeMetricFamily(f"nightside_{name}", words, value=value)


def _counts(name: str, words: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(f"nightside_{name}", words, labels=[label])
    for key, count in counts:
        family.add_metric([key], count)
    return family


def _states(name: str, words: str, states: Mapping[ReplicaId, ReplicaCondition]) -> Metric:
    """Every state of every replica, so that no series ends when a replica changes its state."""
    family = GaugeMetricFamily(f"nightside_{name}", words, labels=["replica", "state"])
    for replica_id, now in states.items():
        for state in ReplicaCondition:
            family.add_metric([replica_id, state], now is state)
    return family


def _ages(name: str, words: str, label: str, ages_ns: Iterable[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(f"nightside_{name}", words, labels=[label])
    for key, age_ns in ages_ns:
        family.add_metric([key], age_ns / _SECOND_NS)
    return family
