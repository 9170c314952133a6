"""Latest decisions, kept to explain why a request ran where it did. The record is bounded and in memory; it holds names
and numbers of requests, never their tenant or text, and no decision depends on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import DecisionsConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import EndRequest, RecordShadow, RefuseForward
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.vocabulary import (
    Candidate,
    Costs,
    Decision,
    DecodeLoad,
    Figure,
    GatewayId,
    ModelName,
    Outcome,
    Place,
    PoolChoice,
    RegionName,
    ReplicaId,
    RequestId,
    RequestProfile,
    Target,
    TargetKind,
)
from gateway.request.driver import GatewayStep, GatewaySubscriptions
from gateway.request.legs import RanAt, RequestSummary
from mesh.page.rows import SLOW_MS, DecisionMark
from mesh.values import ID_PATTERN

REFUSED = "refused"
"""Value in place of an outcome: the request was refused before it reached this gateway's core."""
REFUSALS_MAX = 8
"""Maximum of refusals kept for one forwarded request, the latest."""
SHADOWED_PAIRS_MAX = 1024
"""Maximum of pairs of peer and model for which shadow overflow is counted; further ones are counted as `other`."""

_MARKED_AMONG = 1_000
"""Latest requests among which marked ones are looked for, each time that an operator's page asks."""
_FAILURES = frozenset(outcome for outcome in Outcome if outcome.startswith(("failed_", "expired_")))
_REJECTIONS = frozenset(outcome for outcome in Outcome if outcome.startswith("rejected_"))
_MILLISECOND_NS = 1_000_000
_SHADOW_LINE_EVERY_NS = 1_000_000_000
_RECORD_BYTES = 1_000
_PLACEMENT_BYTES = 1_000
_CANDIDATE_BYTES = 150
_COSTS_BYTES = 290
_FIGURE_BYTES = 110
_DECISION_ID = re.compile(rf"(?P<gateway>{ID_PATTERN.pattern}):(?P<request>.+)\.[0-9]+(-[0-9]+)?")


def decision_id(gateway_id: GatewayId, request_id: RequestId, attempt: int, leg: int = 1) -> str:
    """Name of one placement, unique in the mesh. No gateway id holds a colon, so the name can be split again. The first
    leg of an attempt is named by the attempt's number alone."""
    further = f"-{leg}" if leg > 1 else ""
    return f"{gateway_id}:{request_id}.{attempt}{further}"


# Explanations: plain values that can be JSON, the same for an operator, for a peer and over the wire.


class ExplainedFigure(Struct, frozen=True):
    """Figure about a target beside its score."""

    amount: float | None
    """Amount in `unit`; None: not known."""
    unit: str


class ExplainedCosts(Struct, frozen=True):
    """Score of a target and its parts, in milliseconds, each weighted as it was compared; the lowest wins. A weighted
    millisecond is no real waiting time."""

    reading: float
    """Cost of reading the part of the prompt that the target did not have cached."""
    crowding: float
    """Cost to the requests running there of one more request."""
    waiting: float
    """Cost of the requests ahead of it."""
    distance: float
    score: float
    further: dict[str, ExplainedFigure] | UnsetType = UNSET
    """Figures beside the score that the policy went by, by name."""

    @classmethod
    def of(cls, reading: float, crowding: float, waiting: float, distance: float) -> ExplainedCosts:
        return cls(reading, crowding, waiting, distance, reading + crowding + waiting + distance)


class ExplainedDecode(Struct, frozen=True):
    """Load of a decode worker when it was considered."""

    group: str
    free_slots: int
    load_tokens: int
    margin_tokens: int
    """Tokens below the fullest worker of its group."""


class ExplainedCandidate(Struct, frozen=True):
    """Target that was considered. The region is empty where it is no longer known."""

    kind: str
    id: str
    region: str
    standing: str
    matched_blocks: int
    load: int
    rtt_ms: float
    costs: ExplainedCosts | UnsetType = UNSET
    """Present only where costs were compared."""
    decode: ExplainedDecode | UnsetType = UNSET
    """Present only for a decode worker."""


class ExplainedPool(Struct, frozen=True):
    """Pool that was chosen, and the figures behind the choice."""

    step: str
    pool: str
    """Empty where another gateway is the target, which chooses the pool."""
    preferred: str
    """Empty where this gateway has no pool that the request fits into."""
    need_tokens: int
    """Smallest sufficient context: the next bound above the request's budget."""
    prompt_tokens: int
    output_tokens: int
    is_soft: bool
    """True where the client set no maximum for the answer."""
    refused_tokens: int
    """Context of an engine that refused the request for its length; 0 if none has."""


class ExplainedPlacement(Struct, frozen=True):
    """One decision: its target (first among `considered`), its reason, and its result."""

    attempt: int
    kind: str
    target: str
    region: str
    reason: str
    matched_blocks: int
    prompt_blocks: int
    candidates: int
    """Number of targets that could have taken the request."""
    waited_ms: float
    replicas_here: int
    """Replicas of the deciding gateway for the model; only some of them are among `considered`."""
    considered: tuple[ExplainedCandidate, ...]
    result: str = ""
    """Empty while the leg runs."""
    refusal: str = ""
    detail: str = ""
    leg: int | UnsetType = UNSET
    """Present only where the attempt has more than one leg."""
    pool: ExplainedPool | UnsetType = UNSET
    """Present only where pools were compared."""
    resume: int | UnsetType = UNSET
    """Number of the resume, from 1; present only where the leg continues a broken answer."""


class ExplainedRefusal(Struct, frozen=True):
    """Refusal of a forward, with its reason."""

    reason: str
    detail: str


class ExplainedRequest(Struct, frozen=True):
    """Knowledge of one gateway about one request."""

    gateway: str
    region: str
    jurisdiction: str
    request_id: str
    model: str
    origin: str
    """Gateway that forwarded it here; empty for a client's request."""
    age_ms: float
    """Time since it arrived."""
    placements: tuple[ExplainedPlacement, ...] = ()
    shadow: ExplainedPlacement | None = None
    """Placement at which it would have been forwarded, with overflow in shadow mode."""
    refusals: tuple[ExplainedRefusal, ...] = ()
    """Refusals of this forward by this gateway."""
    first_token_ms: float | None = None
    outcome: str = ""
    """Empty while it waits or runs."""
    detail: str = ""
    """Detail of its end or, while it waits, the target or capacity that it waits for."""
    replica: str = ""
    ran_in: str = ""
    identity_mismatch: str | UnsetType = UNSET
    """Targets of another model identity that it was kept from after a failure; present only where there were any."""
    hints: str | UnsetType = UNSET
    """Hints of its client; present only where there were any."""


class OtherSide(Struct, frozen=True):
    """Answer of a gateway that the request was forwarded to, or the reason why there is none."""

    gateway: str
    request: ExplainedRequest | None
    problem: str = ""


class Explanation(Struct, frozen=True):
    """Explanation of a request by the asked gateway and by those it forwarded to."""

    here: ExplainedRequest
    there: tuple[OtherSide, ...] = ()
    words: tuple[str, ...] = ()
    """Explanation in sentences, where a person will read it."""


# Records


class _ShadowCount(Struct):
    recorded: int = 0
    placed: int = 0
    waited_on_ns: int = 0


class _Remembered(Struct):
    """One request with what became of it beyond its record."""

    record: RequestRecord
    ran_at: RanAt | None = None
    refusals: tuple[RefuseForward, ...] = ()
    """Refusals of this forward by this gateway, the earlier ones too, as far as they are remembered."""


class Latest(Struct, frozen=True):
    """Finished request, for a list of the latest ones."""

    arrived_ns: int
    request: ExplainedRequest
    marks: list[DecisionMark]


class DecisionLog:
    """Latest finished requests and refused forwards of this gateway by request id; of two with the same id, the later
    one. Requests that are not finished are looked up among the driver's. It observes the driver for shadow decisions.
    """

    def __init__(
        self,
        gateway_id: GatewayId,
        place: Place,
        config: DecisionsConfig,
        core: GatewayCore,
        log: FilteringBoundLogger | None = None,
        *,
        requests: Mapping[RequestId, RequestRecord],
    ) -> None:
        """`requests` has the records of the requests that are not finished."""
        self.size_bytes = 0
        """Estimated size of the records, rather too high."""
        self._gateway_id = gateway_id
        self._place = place
        self._config = config
        self._core = core
        self._requests = requests
        self._remembered: dict[RequestId, _Remembered] = {}
        self._shadows = ShadowReport(log)
        self.subscriptions: GatewaySubscriptions = {RecordShadow: self._shadowed}

    def __len__(self) -> int:
        return len(self._remembered)

    def on_finished(
        self, _profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Keep the record of a finished request, unless a later request of the same id has finished already."""
        if record is None:
            return
        shadow = record.shadow
        if shadow is not None and record.legs:
            self._shadows.placed(record.model, shadow, record.legs[0].decision)
        before = self._remembered.get(record.request_id)
        if before is None or before.record.arrived_ns <= record.arrived_ns:
            self._remember(_Remembered(record, summary.ran_at if end is record.end else None))

    def on_refused(self, _profile: RequestProfile, record: RequestRecord) -> None:
        """Keep a refused forward, with the earlier refusals of the same request. The refusal of a duplicate leaves the
        running request's record alone."""
        running = self._requests.get(record.request_id)
        if record.refusal is not None and (running is None or running.end is not None):
            self._remember(_Remembered(record, refusals=(record.refusal,)))

    def explain(self, wanted: str, now_ns: int) -> ExplainedRequest | None:
        """Explanation by the id of a request or of one of its decisions; None if it is unknown or forgotten."""
        found = self._find(RequestId(wanted)) or self._find(self._request_id_of(wanted))
        return None if found is None else self._explained(found, now_ns)

    def latest(self, count: int, now_ns: int, marked_max: int = 0) -> list[Latest]:
        """Latest finished requests, newest first, and of those before them as many as it takes to have `marked_max` of
        each mark."""
        found: list[Latest] = []
        counts: Counter[DecisionMark] = Counter()
        for index, entry in enumerate(islice(reversed(self._remembered.values()), max(count, _MARKED_AMONG))):
            marks = _marks_of(entry.record)
            if index < count or any(counts[mark] < marked_max for mark in marks):
                counts.update(marks)
                found.append(Latest(entry.record.arrived_ns, self._explained(entry, now_ns), marks))
        return found

    def explain_to(self, peer: GatewayId, request_id: RequestId, now_ns: int) -> ExplainedRequest | None:
        """Explanation for a peer, only of a request that this peer forwarded here; else None."""
        found = self._find(request_id)
        return self._explained(found, now_ns) if found is not None and _origin_of(found.record) == peer else None

    def describe(self) -> dict[str, object]:
        return {
            "decisions": {"requests": len(self), "bytes": self.size_bytes},
            "shadow_overflow": self._shadows.describe(),
        }

    # Keeping and forgetting records

    def _find(self, request_id: RequestId) -> _Remembered | None:
        unfinished, remembered = self._requests.get(request_id), self._remembered.get(request_id)
        if unfinished is None or (remembered is not None and remembered.record.arrived_ns > unfinished.arrived_ns):
            return remembered
        return _Remembered(unfinished, refusals=self._refusals_before(unfinished))

    def _remember(self, entry: _Remembered) -> None:
        request_id = entry.record.request_id
        if request_id in self._remembered:
            entry.refusals = (*self._refusals_before(entry.record), *entry.refusals)[-REFUSALS_MAX:]
            self._forget(request_id)
        self._remembered[request_id] = entry
        self.size_bytes += _size_of(entry.record)
        while len(self._remembered) > self._config.requests_max or self.size_bytes > self._config.held_max_bytes:
            self._forget(next(iter(self._remembered)))

    def _refusals_before(self, record: RequestRecord) -> tuple[RefuseForward, ...]:
        before = self._remembered.get(record.request_id)
        return () if before is None or _origin_of(before.record) != _origin_of(record) else before.refusals

    def _shadowed(self, step: GatewayStep, shadow: RecordShadow) -> None:
        record = self._requests.get(shadow.request_id)
        if record is not None:
            self._shadows.recorded(record.model, shadow, step.now_ns)

    def _forget(self, request_id: RequestId) -> None:
        forgotten = self._remembered.pop(request_id, None)
        if forgotten is not None:
            self.size_bytes -= _size_of(forgotten.record)

    # Explaining

    def _request_id_of(self, wanted: str) -> RequestId:
        named = _DECISION_ID.fullmatch(wanted)
        if named is None or named["gateway"] != self._gateway_id:
            return RequestId(wanted)
        return RequestId(named["request"])

    def _explained(self, entry: _Remembered, now_ns: int) -> ExplainedRequest:
        record, ran_at = entry.record, entry.ran_at
        first_token_ns = record.first_token_ns
        return ExplainedRequest(
            gateway=self._gateway_id,
            region=self._place.region,
            jurisdiction=self._place.jurisdiction,
            request_id=record.request_id,
            model=record.model,
            origin=_origin_of(record),
            age_ms=_in_ms(now_ns - record.arrived_ns),
            placements=tuple(self._placement(record, leg) for leg in record.legs),
            shadow=None if record.shadow is None else self._shadow(record.model, record.shadow),
            refusals=tuple(ExplainedRefusal(each.reason, each.detail) for each in entry.refusals),
            first_token_ms=None if first_token_ns is None else _in_ms(first_token_ns - record.arrived_ns),
            outcome="" if record.end is None else record.end.outcome,
            detail=self._core.why_it_waits(record.request_id) if record.end is None else record.end.detail,
            replica="" if ran_at is None else ran_at.replica_id,
            ran_in="" if ran_at is None else ran_at.place.region,
            identity_mismatch=record.identity_mismatch or UNSET,
            hints=record.hints.words() or UNSET,
        )

    def _placement(self, record: RequestRecord, leg: LegState) -> ExplainedPlacement:
        ended, number = leg.ended, record.number_of(leg)
        return self._decided(
            leg,
            leg.attempt,
            leg.place.region,
            leg.replicas_here,
            leg=UNSET if number is None else number,
            resume=leg.segment or UNSET,
            result="" if ended is None else ended.result,
            refusal="" if ended is None or ended.refusal is None else ended.refusal,
            detail="" if ended is None else ended.detail,
        )

    def _shadow(self, model: ModelName, shadow: RecordShadow) -> ExplainedPlacement:
        return self._decided(shadow, 0, self._region_of(shadow.target), self._core.replicas.groups.counts.get(model, 0))

    def _decided(
        self,
        made: LegState | RecordShadow,
        attempt: int,
        region: str,
        replicas_here: int,
        *,
        leg: int | UnsetType = UNSET,
        resume: int | UnsetType = UNSET,
        **more: str,
    ) -> ExplainedPlacement:
        decision = made.decision
        return ExplainedPlacement(
            attempt=attempt,
            resume=resume,
            kind=made.target.kind,
            target=made.target.id,
            region=region,
            reason=decision.reason,
            matched_blocks=decision.matched_blocks,
            prompt_blocks=decision.prompt_blocks,
            candidates=decision.candidates,
            waited_ms=_in_ms(decision.waited_ns),
            replicas_here=replicas_here,
            considered=tuple(map(self._candidate, decision.considered)),
            leg=leg,
            pool=UNSET if decision.pool is None else _pool(decision.pool),
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
            costs=UNSET if candidate.costs is None else _costs_in_ms(candidate.costs),
            decode=UNSET if candidate.decode is None else _decode_load(candidate.decode),
        )

    def _region_of(self, target: Target) -> RegionName | str:
        """Region of a target that this gateway knows at present; else empty."""
        if target.kind is TargetKind.REPLICA:
            replica = self._core.replicas.get(ReplicaId(target.id))
            return "" if replica is None else replica.spec.place.region
        peer = self._core.peers.get(GatewayId(target.id))
        return "" if peer is None else peer.spec.place.region


AskPeer = Callable[[GatewayId, RequestId], Awaitable[OtherSide]]


async def explain_both(decisions: DecisionLog, ask_peer: AskPeer, wanted: str, now_ns: int) -> Explanation | None:
    """Explanation by this gateway and by every peer it forwarded the request to; None if the request is unknown
    here."""
    here = decisions.explain(wanted, now_ns)
    if here is None:
        return None
    peers = dict.fromkeys(each.target for each in here.placements if each.kind == TargetKind.PEER)
    return Explanation(here, tuple([await ask_peer(GatewayId(peer), RequestId(here.request_id)) for peer in peers]))


class ShadowReport:
    """Counts of what shadow overflow would have forwarded, per peer and model, with log lines at a limited rate."""

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
            "shadow_forward",
            request_id=shadow.request_id,
            model=model,
            peer=shadow.target.id,
            placed_by=str(shadow.decision.reason),
            waited_ms=shadow.decision.waited_ns // _MILLISECOND_NS,
            count=self._unlogged,
        )
        self._line_due_ns, self._unlogged = now_ns + _SHADOW_LINE_EVERY_NS, 0

    def placed(self, model: ModelName, shadow: RecordShadow, first: Decision) -> None:
        """Count the first placement of a request that shadow overflow would have forwarded before. The time it waited
        on is what forwarding would have saved, less the round trip."""
        waited_on_ns = first.waited_ns - shadow.decision.waited_ns
        if waited_on_ns >= 0:  # else it was placed first, and waited again
            count = self._count(model, shadow.target)
            count.placed += 1
            count.waited_on_ns += waited_on_ns

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


def _marks_of(record: RequestRecord) -> list[DecisionMark]:
    """Properties that operators filter decisions by."""
    return [mark for mark, has_it in _MARKS.items() if has_it(record)]


def _is_failed(record: RequestRecord) -> bool:
    return record.end is not None and record.end.outcome in _FAILURES


def _is_refused(record: RequestRecord) -> bool:
    return record.refusal is not None or (record.end is not None and record.end.outcome in _REJECTIONS)


def _is_slow(record: RequestRecord) -> bool:
    waited_ns = record.legs[0].decision.waited_ns if record.legs else 0
    first_token_ns = 0 if record.first_token_ns is None else record.first_token_ns - record.arrived_ns
    return max(waited_ns, first_token_ns) > SLOW_MS * _MILLISECOND_NS


def _has_segments(record: RequestRecord) -> bool:
    return any(leg.segment for leg in record.legs)


def _is_forwarded(record: RequestRecord) -> bool:
    return record.origin is not None or any(leg.target.kind is TargetKind.PEER for leg in record.legs)


_MARKS: dict[DecisionMark, Callable[[RequestRecord], bool]] = {
    DecisionMark.FAILED: _is_failed,
    DecisionMark.SLOW: _is_slow,
    DecisionMark.REFUSED: _is_refused,
    DecisionMark.RESUMED: _has_segments,
    DecisionMark.FORWARDED: _is_forwarded,
}


def _origin_of(record: RequestRecord) -> GatewayId | str:
    """Gateway that forwarded the request; empty for a client's request."""
    return "" if record.origin is None else record.origin.gateway_id


def _size_of(record: RequestRecord) -> int:
    size = _RECORD_BYTES
    for leg in record.legs:
        size += _size_of_placement(leg.decision)
    return size if record.shadow is None else size + _size_of_placement(record.shadow.decision)


def _size_of_placement(decision: Decision) -> int:
    size = _PLACEMENT_BYTES
    for each in decision.considered:
        size += _CANDIDATE_BYTES + _COSTS_BYTES * ((each.costs is not None) + (each.decode is not None))
        size += _FIGURE_BYTES * (0 if each.costs is None else len(each.costs.further))
    return size


def _in_ms(duration_ns: int) -> float:
    return duration_ns / _MILLISECOND_NS


def _pool(choice: PoolChoice) -> ExplainedPool:
    return ExplainedPool(
        choice.step,
        choice.pool or "",
        choice.preferred or "",
        choice.need_tokens,
        choice.prompt_tokens,
        choice.output_tokens,
        choice.is_soft,
        choice.refused_tokens,
    )


def _decode_load(load: DecodeLoad) -> ExplainedDecode:
    return ExplainedDecode(load.group, load.free_slots, load.load_tokens, load.margin_tokens)


def _costs_in_ms(costs: Costs) -> ExplainedCosts:
    parts_ns = (costs.reading_ns, costs.crowding_ns, costs.waiting_ns, costs.distance_ns)
    explained = ExplainedCosts.of(*(part_ns / _MILLISECOND_NS for part_ns in parts_ns))
    if not costs.further:
        return explained
    return replace(explained, further={each.name: _figure(each) for each in costs.further})


def _figure(figure: Figure) -> ExplainedFigure:
    return ExplainedFigure(None if figure.amount is None else figure.amount / figure.per_unit, figure.unit)
