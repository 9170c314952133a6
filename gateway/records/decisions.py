"""Remembers the latest decisions, so that anybody can be told why a request ran where it did. A bounded record in
memory: it holds names and numbers of requests, never their tenant or text, and nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import DecisionsConfig
from gateway.core.effects import Effect, EndRequest, RecordShadow, RefuseForward, StartLeg
from gateway.core.events import AssignmentApplied, Event, FirstToken, ForwardArrived, LegEnded, RequestArrived
from gateway.core.vocabulary import (
    Candidate,
    GatewayId,
    ModelName,
    Place,
    RegionName,
    RequestId,
    RequestProfile,
    Target,
    TargetKind,
    peer_target,
    replica_target,
)
from gateway.ground.values import ID_PATTERN
from gateway.request.legs import RanAt, RequestSummary

REFUSALS_MAX = 8
"""Refusals kept of one forwarded request; of more, the last ones."""
SHADOWED_PAIRS_MAX = 1024
"""Pairs of peer and model that shadow overflow is counted for."""

_MILLISECOND_NS = 1_000_000
_SHADOW_LINE_EVERY_NS = 1_000_000_000
_RECORD_BYTES = 1_000
_PLACEMENT_BYTES = 1_000
_CANDIDATE_BYTES = 150
_DECISION_ID = re.compile(rf"(?P<gateway>{ID_PATTERN.pattern}):(?P<request>.+)\.(?P<attempt>[0-9]+)")


def decision_id(gateway_id: GatewayId, request_id: RequestId, attempt: int) -> str:
    """Names one placement in the whole mesh. No gateway's id holds a colon, so it can be taken apart again."""
    return f"{gateway_id}:{request_id}.{attempt}"


# What is told: plain values, JSON-able, the same for an operator, for a peer and over the wire.


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """A target that was looked at. The region is empty where it is no longer known."""

    kind: str
    id: str
    region: str
    standing: str
    matched_blocks: int
    load: int
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class ExplainedPlacement:
    """One decision: the target first among `considered`, why it was taken, and what came of it."""

    attempt: int
    kind: str
    target: str
    region: str
    reason: str
    matched_blocks: int
    prompt_blocks: int
    candidates: int
    """Targets that could have taken it."""
    waited_ms: float
    replicas_here: int
    """Replicas of its own that the deciding gateway had for the model; only some of them are among `considered`."""
    considered: tuple[ExplainedCandidate, ...]
    result: str = ""
    """Empty while it runs."""
    refusal: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedRefusal:
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """What one gateway knows of one request."""

    gateway: str
    region: str
    jurisdiction: str
    request_id: str
    model: str
    origin: str
    """The gateway that forwarded it here; empty for a client's request."""
    age_ms: float
    """Since it arrived."""
    placements: tuple[ExplainedPlacement, ...] = ()
    shadow: ExplainedPlacement | None = None
    """Where it would have been forwarded, with overflow in shadow mode."""
    refusals: tuple[ExplainedRefusal, ...] = ()
    """How often, and why, this gateway turned the forward away."""
    first_token_ms: float | None = None
    outcome: str = ""
    """Empty while it waits or runs."""
    detail: str = ""
    replica: str = ""
    ran_in: str = ""


@dataclass(frozen=True, slots=True)
class OtherSide:
    """What a gateway that we forwarded to says, or why nothing could be had from it."""

    gateway: str
    request: ExplainedRequest | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    here: ExplainedRequest
    there: tuple[OtherSide, ...] = ()


# What is kept


@dataclass(slots=True)
class _Placed:
    order: StartLeg
    replicas_here: int
    ended: LegEnded | None = None


@dataclass(slots=True)
class _Record:
    request_id: RequestId
    model: ModelName
    origin: GatewayId | None
    arrived_ns: int
    size_bytes: int = 0
    placed: list[_Placed] = field(default_factory=list)
    shadow: RecordShadow | None = None
    refusals: list[RefuseForward] = field(default_factory=list)
    is_refused: bool = False
    """When it came last, it was turned away."""
    first_token_ns: int | None = None
    end: EndRequest | None = None
    ran_at: RanAt | None = None

    @property
    def is_open(self) -> bool:
        return self.end is None and not self.is_refused


@dataclass(slots=True)
class _ShadowCount:
    recorded: int = 0
    placed: int = 0
    waited_on_ns: int = 0


class DecisionLog:
    """An observer of the driver: the last requests of this gateway, by request id; of two with one id, the later."""

    def __init__(
        self, gateway_id: GatewayId, place: Place, config: DecisionsConfig, log: FilteringBoundLogger | None = None
    ) -> None:
        self.size_bytes = 0
        """As it counts itself; an estimate that is rather too high."""
        self._gateway_id = gateway_id
        self._place = place
        self._config = config
        self._records: dict[RequestId, _Record] = {}
        self._places: dict[Target, Place] = {}
        self._replicas_of: dict[ModelName, int] = {}
        self._shadows = ShadowReport(log)

    def __len__(self) -> int:
        return len(self._records)

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, LegEnded):
            self._attempt_ended(event)
        elif isinstance(event, FirstToken):
            record = self._records.get(event.request_id)
            if record is not None and record.first_token_ns is None:
                record.first_token_ns = now_ns
        elif isinstance(event, RequestArrived):
            self._begin(event.profile, None, now_ns)
        elif isinstance(event, ForwardArrived):
            self._forward_arrived(event, effects, now_ns)
        elif isinstance(event, AssignmentApplied):
            self._assigned(event)
        for effect in effects:
            if isinstance(effect, StartLeg):
                self._started(effect)
            elif isinstance(effect, EndRequest):
                self._ended(effect)
            elif isinstance(effect, RecordShadow):
                self._shadowed(effect, now_ns)

    def on_finished(self, _: RequestProfile, end: EndRequest, summary: RequestSummary) -> None:
        """Called once by each request's owner. By then a later request of the same id may have taken its place."""
        record = self._records.get(end.request_id)
        if record is not None and record.end is end:
            record.ran_at = summary.ran_at

    def explain(self, wanted: str, now_ns: int) -> ExplainedRequest | None:
        """By the id of a request or of one of its decisions; None if it is not, or no longer, known."""
        record = self._records.get(RequestId(wanted)) or self._records.get(self._request_id_of(wanted))
        return None if record is None else self._explained(record, now_ns)

    def explain_to(self, peer: GatewayId, request_id: RequestId, now_ns: int) -> ExplainedRequest | None:
        """To another gateway, and only what that gateway itself forwarded to us."""
        record = self._records.get(request_id)
        return self._explained(record, now_ns) if record is not None and record.origin == peer else None

    def describe(self) -> dict[str, object]:
        return {
            "decisions": {"requests": len(self), "bytes": self.size_bytes},
            "shadow_overflow": self._shadows.describe(),
        }

    # Requests come and go

    def _begin(self, profile: RequestProfile, origin: GatewayId | None, now_ns: int) -> _Record:
        record = _Record(profile.request_id, profile.model, origin, now_ns)
        self._forget(profile.request_id)
        self._records[profile.request_id] = record
        self._grow(record, _RECORD_BYTES)
        return record

    def _forward_arrived(self, event: ForwardArrived, effects: list[Effect], now_ns: int) -> None:
        """One that comes a second time keeps the refusals of its first; one refused as a double leaves the first be."""
        refusal = next((each for each in effects if isinstance(each, RefuseForward)), None)
        before = self._records.get(event.profile.request_id)
        if refusal is not None and before is not None and before.is_open:
            return
        record = self._begin(event.profile, event.origin_gateway_id, now_ns)
        record.is_refused = refusal is not None
        if before is not None and before.origin == record.origin:
            record.refusals = before.refusals
        if refusal is not None:
            record.refusals = [*record.refusals, refusal][-REFUSALS_MAX:]

    def _started(self, order: StartLeg) -> None:
        record = self._records.get(order.request_id)
        if record is None:
            return
        if record.shadow is not None and not record.placed:
            self._shadows.placed(record.model, record.shadow, order)
        record.placed.append(_Placed(order, self._replicas_of.get(record.model, 0)))
        self._grow(record, _PLACEMENT_BYTES + _CANDIDATE_BYTES * len(order.decision.considered))

    def _attempt_ended(self, event: LegEnded) -> None:
        record = self._records.get(event.request_id)
        for placed in record.placed if record is not None else ():
            if placed.order.attempt == event.attempt and placed.ended is None:
                placed.ended = event

    def _shadowed(self, effect: RecordShadow, now_ns: int) -> None:
        record = self._records.get(effect.request_id)
        if record is None:
            return
        record.shadow = effect
        self._shadows.recorded(record.model, effect, now_ns)
        self._grow(record, _PLACEMENT_BYTES + _CANDIDATE_BYTES * len(effect.decision.considered))

    def _ended(self, effect: EndRequest) -> None:
        record = self._records.get(effect.request_id)
        if record is not None and record.end is None:
            record.end = effect

    def _assigned(self, event: AssignmentApplied) -> None:
        self._places = {replica_target(each.replica_id): each.place for each in event.replicas}
        self._places |= {peer_target(each.gateway_id): each.place for each in event.peers}
        self._replicas_of = {}
        for model in (model for replica in event.replicas for model in replica.models):
            self._replicas_of[model] = self._replicas_of.get(model, 0) + 1

    def _grow(self, record: _Record, more_bytes: int) -> None:
        record.size_bytes += more_bytes
        self.size_bytes += more_bytes
        while len(self._records) > self._config.requests_max or self.size_bytes > self._config.held_max_bytes:
            self._forget(next(iter(self._records)))

    def _forget(self, request_id: RequestId) -> None:
        forgotten = self._records.pop(request_id, None)
        if forgotten is not None:
            self.size_bytes -= forgotten.size_bytes

    # Telling

    def _request_id_of(self, wanted: str) -> RequestId:
        named = _DECISION_ID.fullmatch(wanted)
        if named is None or named["gateway"] != self._gateway_id:
            return RequestId(wanted)
        return RequestId(named["request"])

    def _explained(self, record: _Record, now_ns: int) -> ExplainedRequest:
        first_token_ns = record.first_token_ns
        return ExplainedRequest(
            gateway=self._gateway_id,
            region=self._place.region,
            jurisdiction=self._place.jurisdiction,
            request_id=record.request_id,
            model=record.model,
            origin=record.origin or "",
            age_ms=_in_ms(now_ns - record.arrived_ns),
            placements=tuple(self._placement(placed) for placed in record.placed),
            shadow=None if record.shadow is None else self._shadow(record.model, record.shadow),
            refusals=tuple(ExplainedRefusal(each.reason, each.detail) for each in record.refusals),
            first_token_ms=None if first_token_ns is None else _in_ms(first_token_ns - record.arrived_ns),
            outcome="" if record.end is None else record.end.outcome,
            detail="" if record.end is None else record.end.detail,
            replica="" if record.ran_at is None else record.ran_at.replica_id,
            ran_in="" if record.ran_at is None else record.ran_at.place.region,
        )

    def _placement(self, placed: _Placed) -> ExplainedPlacement:
        order, ended = placed.order, placed.ended
        return self._decided(
            order,
            order.attempt,
            placed.replicas_here,
            result="" if ended is None else ended.result,
            refusal="" if ended is None or ended.refusal is None else ended.refusal,
            detail="" if ended is None else ended.detail,
        )

    def _shadow(self, model: ModelName, shadow: RecordShadow) -> ExplainedPlacement:
        return self._decided(shadow, 0, self._replicas_of.get(model, 0))

    def _decided(
        self, made: StartLeg | RecordShadow, attempt: int, replicas_here: int, **more: str
    ) -> ExplainedPlacement:
        decision = made.decision
        return ExplainedPlacement(
            attempt=attempt,
            kind=made.target.kind,
            target=made.target.id,
            region=self._region_of(made.target),
            reason=decision.reason,
            matched_blocks=decision.matched_blocks,
            prompt_blocks=decision.prompt_blocks,
            candidates=decision.candidates,
            waited_ms=_in_ms(decision.waited_ns),
            replicas_here=replicas_here,
            considered=tuple(map(self._candidate, decision.considered)),
            **more,
        )

    def _candidate(self, candidate: Candidate) -> ExplainedCandidate:
        return ExplainedCandidate(
            kind=candidate.target.kind,
            id=candidate.target.id,
            region=self._region_of(candidate.target),
            standing=candidate.standing,
            matched_blocks=candidate.matched_blocks,
            load=candidate.load,
            rtt_ms=_in_ms(candidate.rtt_ns),
        )

    def _region_of(self, target: Target) -> RegionName | str:
        place = self._places.get(target)
        return "" if place is None else place.region


AskPeer = Callable[[GatewayId, RequestId], Awaitable[OtherSide]]


async def explain_both(decisions: DecisionLog, ask_peer: AskPeer, wanted: str, now_ns: int) -> Explanation | None:
    """Our side of a request and that of every peer we forwarded it to; None if we do not know the request."""
    here = decisions.explain(wanted, now_ns)
    if here is None:
        return None
    peers = dict.fromkeys(each.target for each in here.placements if each.kind == TargetKind.PEER)
    return Explanation(here, tuple([await ask_peer(GatewayId(peer), RequestId(here.request_id)) for peer in peers]))


class ShadowReport:
    """Counts what shadow overflow would have forwarded, per peer and model, and logs a line of it now and then."""

    def __init__(self, log: FilteringBoundLogger | None) -> None:
        self._log = log
        self._counts: dict[tuple[str, ModelName], _ShadowCount] = {}
        self._line_due_ns: int | None = None
        self._unlogged = 0

    def recorded(self, model: ModelName, shadow: RecordShadow, now_ns: int) -> None:
        self._count(model, shadow.target).recorded += 1
        self._unlogged += 1
        if self._log is None or (self._line_due_ns is not None and now_ns < self._line_due_ns):
            return
        self._log.info(
            "shadow: would have been forwarded",
            request_id=shadow.request_id,
            model=model,
            peer=shadow.target.id,
            placed_by=str(shadow.decision.reason),
            waited_ms=shadow.decision.waited_ns // _MILLISECOND_NS,
            since_the_last_line=self._unlogged,
        )
        self._line_due_ns, self._unlogged = now_ns + _SHADOW_LINE_EVERY_NS, 0

    def placed(self, model: ModelName, shadow: RecordShadow, order: StartLeg) -> None:
        """It was placed at last: how long it waited on is what forwarding would have saved, less the round trip."""
        count = self._count(model, shadow.target)
        count.placed += 1
        count.waited_on_ns += order.decision.waited_ns - shadow.decision.waited_ns

    def describe(self) -> list[dict[str, object]]:
        return [_shadow_row(peer, model, count) for (peer, model), count in self._counts.items()]

    def _count(self, model: ModelName, target: Target) -> _ShadowCount:
        pair = (target.id, model)
        if pair not in self._counts and len(self._counts) >= SHADOWED_PAIRS_MAX:
            pair = ("other", ModelName("other"))
        return self._counts.setdefault(pair, _ShadowCount())


def _shadow_row(peer: str, model: ModelName, count: _ShadowCount) -> dict[str, object]:
    waited_on_ms = _in_ms(count.waited_on_ns) / count.placed if count.placed else None
    return {
        "peer": peer,
        "model": model,
        "would_have_been_forwarded": count.recorded,
        "placed_here_since": count.placed,
        "waited_on_mean_ms": waited_on_ms,
    }


def _in_ms(duration_ns: int) -> float:
    return duration_ns / _MILLISECOND_NS
