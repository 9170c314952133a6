"""Sentences that explain why a request ran where it did. They only state what the gateways recorded; nothing is
recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from gateway.core.vocabulary import LegResult, PlacementReason, Standing, TargetKind
from gateway.features.recorded import WORDS
from gateway.features.words import in_ms, rounded
from gateway.records.decisions import (
    REFUSED,
    ExplainedCandidate,
    ExplainedCosts,
    ExplainedPlacement,
    ExplainedRequest,
    Explanation,
    OtherSide,
)

_COMPARED = frozenset(
    {
        PlacementReason.LOCAL_PREFIX,
        PlacementReason.LOCAL_EXPLORE,
        PlacementReason.SIBLING_PREFIX,
        PlacementReason.SIBLING_OVERFLOW,
        PlacementReason.REMOTE_PREFIX,
        PlacementReason.REMOTE_NEAREST,
    }
)
"""Reasons that say only what the target knew of the prompt; where costs were compared, the score is told instead."""
_REASONS = {reason: clause for each in WORDS for reason, clause in each.reasons.items()}
_ANSWERED = frozenset({LegResult.COMPLETED, LegResult.CLIENT_ERROR})
_STANDINGS: dict[str, str] = {
    Standing.AVAILABLE: "could have taken it",
    Standing.NOT_ALLOWED: "{was} not allowed by policy",
    Standing.FAILED_BEFORE: "had failed this request before",
    Standing.UNHEALTHY: "{was} unhealthy",
    Standing.LOST: "{was} lost",
    Standing.STALE: "had not been heard of for too long",
    Standing.LEAVING: "{was} to leave soon",
    Standing.DISTRUSTED: "had just failed or turned away an attempt",
    Standing.NOT_ACCEPTING: "took nothing in",
    Standing.BREAKER: "{was} cut off after failures",
    Standing.RAMP: "{was} still ramping up",
    Standing.PENDING: "had pending requests",
    Standing.CREDIT: "had been given all that one probe allows",
    Standing.OUTSTANDING: "had as many requests as allowed",
    Standing.KV_FULL: "had a KV cache fuller than a prefill worker's may be",
    Standing.DECODE_FULL: "had no decode slot in its pool for what it would read",
    Standing.TOO_SHORT: "had no pool that takes so long a request",
    Standing.OTHER_IDENTITY: "served another model under the same name",
    Standing.QUEUE: "had a queue that was too long",
    Standing.BUSY: "had no free replica",
}


def in_words(explanation: Explanation) -> Iterator[str]:
    """Sentences on both sides: what the request was and how it ended, why it ran where it did, and the same from the
    gateways it was forwarded to."""
    yield headline(explanation.here)
    yield sentence(explanation.here)
    for other in explanation.there:
        yield of_other_side(other)


def of_other_side(other: OtherSide) -> str:
    if other.request is None:
        return f"The other side is missing: of gateway {other.gateway}, {other.problem}."
    return f"At {gateway_in_words(other.request)}: {sentence(other.request)}"


def headline(request: ExplainedRequest) -> str:
    source = f"forwarded by gateway {request.origin}" if request.origin else "from a client"
    ended = f"ended as {request.outcome}" if request.outcome else "not over yet"
    detail = f" ({request.detail})" if request.outcome and request.detail else ""
    model = f" for {request.model}" if request.model else ""
    return f"Request {request.request_id}{model}, {source}, at {gateway_in_words(request)}: {ended}{detail}."


def sentence(request: ExplainedRequest) -> str:
    """Sentences on where the request ran and why, from the record of its last placement, preceded by the attempts
    before it."""
    if not request.outcome and request.detail:
        return " ".join(_waiting(request))
    if not request.placements:
        return " ".join(_unplaced(request))
    *before, last = request.placements
    words = [_attempt_before(each) for each in before]
    words.append(f"{_where(request, last)} because {because(last)}.")
    words += filter(None, (each.sentence(last) for each in WORDS))
    if request.identity_mismatch:
        words.append(f"After a failure it was kept from other models of the same name: {request.identity_mismatch}.")
    if request.hints:
        words.append(f"Its client hinted: {request.hints}.")
    if request.shadow is not None:
        words.append(f"Had overflow been on, it would have gone to {_region(request.shadow)}.")
    return " ".join(words)


def because(placement: ExplainedPlacement) -> str:
    """Clause that gives the reason for this target."""
    target, region, distance = placement.target, _region(placement), _distance(placement)
    known = share(placement.matched_blocks, placement.prompt_blocks)
    not_here = _why_not_here(placement)
    alone = placement.candidates == 1
    words: dict[str, str] = {
        PlacementReason.LOCAL_PREFIX: f"{target} knew the most of the prompt, {known}",
        PlacementReason.LOCAL_EXPLORE: f"{target} was the only one with room"
        if alone
        else f"{target} was the least loaded, and no replica knew enough of the prompt",
        PlacementReason.LOCAL_POLICY: f"the placement policy picked {target}",
        PlacementReason.SIBLING_PREFIX: f"the sibling gateway {target} knew more of the prompt than any here, {known}",
        PlacementReason.SIBLING_OVERFLOW: f"{not_here}; the sibling gateway {target} had room",
        PlacementReason.REMOTE_PREFIX: f"{not_here}; {region} knew {known} of the prompt ({distance} away)",
        PlacementReason.REMOTE_NEAREST: f"{not_here}; {region} was the only one with room ({distance} away)"
        if alone
        else f"{not_here}; {region} was nearest ({distance})",
        PlacementReason.REMOTE_POLICY: f"{not_here}; the placement policy picked {region}",
    }
    if not alone and placement.considered and placement.considered[0].costs and placement.reason in _COMPARED:
        return _was_cheapest(placement, placement.considered[0].costs)
    own = _REASONS.get(placement.reason)
    return words.get(placement.reason, f"of {placement.reason}") if own is None else own(placement)


def _was_cheapest(placement: ExplainedPlacement, costs: ExplainedCosts) -> str:
    who = placement.target if placement.kind == TargetKind.REPLICA else f"gateway {placement.target}"
    where = "" if placement.kind == TargetKind.REPLICA else f" in {_region(placement)} ({_distance(placement)} away)"
    known = share(placement.matched_blocks, placement.prompt_blocks)
    return f"{who}{where} had the lowest score, {score_in_words(costs)}, and knew {known} of the prompt"


def _where(request: ExplainedRequest, placement: ExplainedPlacement) -> str:
    """Sentence on the place, taken from the answer where this attempt gave one."""
    if request.ran_in and placement.result in _ANSWERED:
        return f"It ran in {request.ran_in} (replica {request.replica})"
    return f"It was sent to {_region(placement)} ({placement.kind} {placement.target})"


def _attempt_before(placement: ExplainedPlacement) -> str:
    result = placement.refusal or placement.result
    became = f"ended as {result}" if result else "still runs"
    detail = f": {placement.detail}" if placement.detail else ""
    leg = f", leg {placement.leg}," if placement.leg else ""
    return (
        f"Attempt {placement.attempt}{leg} went to {_region(placement)} ({placement.kind} {placement.target}) because "
        f"{because(placement)}; it {became}{detail}."
    )


def _waiting(request: ExplainedRequest) -> Iterator[str]:
    yield from map(_attempt_before, request.placements)
    yield f"It waits for {request.detail}."
    if request.shadow is not None:
        yield f"Had overflow been on, it would have gone to {_region(request.shadow)}."


def _unplaced(request: ExplainedRequest) -> Iterator[str]:
    if request.refusals and request.outcome in ("", REFUSED):
        last = request.refusals[-1]
        times = "" if len(request.refusals) == 1 else f" {len(request.refusals)} times, last"
        yield f"It was turned away{times} as {last.reason}: {last.detail}."
        return
    yield "It was not placed anywhere."
    if request.shadow is not None:
        yield f"Had overflow been on, it would have gone to {_region(request.shadow)}, because"
        yield f"{because(request.shadow)}."


def _why_not_here(placement: ExplainedPlacement) -> str:
    """Clause on why none of the region's own replicas took it, as far as they were recorded."""
    total = placement.replicas_here
    recorded = [each for each in placement.considered if each.kind == TargetKind.REPLICA]
    if total == 0:
        return "no replica here serves the model"
    if len(recorded) < total:
        some = f"; of those recorded, {_standings(recorded)}" if recorded else ""
        return f"none of the {total} replicas here was free{some}"
    standings = {each.standing for each in recorded}
    if len(standings) > 1:
        return _standings(recorded)
    all_of_them = {1: "the one replica here", 2: "both replicas here"}.get(total, f"all {total} replicas here")
    return f"{all_of_them} {_in_words(standings.pop(), count=total)}"


def _standings(candidates: Iterable[ExplainedCandidate]) -> str:
    """Counts by standing, such as "2 replicas had pending requests and 1 replica was unhealthy"."""
    parts = []
    for standing, group in groupby(sorted(each.standing for each in candidates)):
        count = len(list(group))
        parts.append(f"{count} {'replica' if count == 1 else 'replicas'} {_in_words(standing, count=count)}")
    return " and ".join(parts)


def _in_words(standing: str, *, count: int) -> str:
    return _STANDINGS.get(standing, f"{{was}} {standing}").format(was="was" if count == 1 else "were")


def _distance(placement: ExplainedPlacement) -> str:
    return in_ms(placement.considered[0].rtt_ms) if placement.considered else "unrecorded"


def gateway_in_words(request: ExplainedRequest) -> str:
    return f"{request.gateway} in {request.region} ({request.jurisdiction})"


def _region(placement: ExplainedPlacement) -> str:
    return placement.region or "a region no longer known"


def score_in_words(costs: ExplainedCosts) -> str:
    """Score with the parts that it is made of."""
    parts = {
        "prefill": costs.reading,
        "interference": costs.crowding,
        "queueing": costs.waiting,
        "network": costs.distance,
    }
    made_of = " + ".join(f"{name} {rounded(part)}" for name, part in parts.items() if part)
    return f"{rounded(costs.score)} ({made_of})" if made_of else rounded(costs.score)


def share(matched: int, blocks: int) -> str:
    return f"{matched} of {blocks} blocks" if blocks else "no whole block"
