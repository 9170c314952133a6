"""Judges the recorded history of a run afterwards: the clients' calls, the audit logs of all gateways and the owners of
all replicas, held against each other. Pure.

It must never call a history sound that it could not judge: a missing record is a violation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.vocabulary import GatewayId, LegResult, Outcome, RegionName, TargetKind
from gateway.records.audit import REFUSED_PREFIX, AuditLine, AuditRecord, ForbiddenPlace, LostAuditLines
from loadgen.studies.failover.clients import SdkCall

_SECOND_NS = 1_000_000_000
RECORDED = "every record is there"
"""Rule of records that are missing, or cannot be read."""


@dataclass(frozen=True, slots=True)
class HistoryViolation:
    rule: str
    about: str
    """Request or replica."""
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}: {self.detail}"


@dataclass(frozen=True, slots=True)
class OwnersSeen:
    """Replicas that each gateway served at one moment, of those gateways that answered."""

    at_ns: int
    replicas: Mapping[GatewayId, frozenset[str]]


def violations(
    calls: Sequence[SdkCall],
    records: Sequence[AuditRecord],
    owners: Sequence[OwnersSeen],
    *,
    gateways: Mapping[GatewayId, RegionName],
    sound_ns: int,
    overlap_max_ns: int,
    killed: Container[str] = (),
    unwritten_ns: tuple[int, int] = (0, 0),
) -> list[HistoryViolation]:
    """Violations in the history of a mesh of `gateways`. From `sound_ns` on all links are sound, so that two gateways
    may serve one replica for `overlap_max_ns` at most. Gateways that were `killed` have no line of requests that they
    had at that time: of those whose answer ended between the times of `unwritten_ns`, and of those without a whole
    answer."""
    lines = [each for each in records if isinstance(each, AuditLine)]
    unwritten = _ended_between(calls, unwritten_ns)
    return [
        *_missing(calls, lines, owners, gateways, sound_ns + overlap_max_ns),
        *_unwritten(records),
        *_ends(lines),
        *_answers(calls, lines, killed, unwritten),
        *_forwards(lines, killed, unwritten),
        *_forbidden(records),
        *_overlaps(owners, sound_ns, overlap_max_ns),
    ]


def ran_twice(records: Iterable[AuditRecord]) -> int:
    """Number of requests that engines ran to the end more than once: allowed where an answer was lost on its way before
    its first part arrived, and counted."""
    whole: Counter[str] = Counter()
    for each in records:
        if isinstance(each, AuditLine):
            whole[each.request] += sum(
                attempt.result == LegResult.COMPLETED and attempt.target.startswith(f"{TargetKind.REPLICA}:")
                for attempt in each.attempts
            )
    return sum(count > 1 for count in whole.values())


def taken_in(records: Iterable[AuditRecord]) -> int:
    """Number of requests that gateways took in from others, without those that they refused."""
    lines = (each for each in records if isinstance(each, AuditLine))
    return sum(bool(each.origin_gateway) and not each.outcome.startswith(REFUSED_PREFIX) for each in lines)


def led_away(
    calls: Iterable[SdkCall], home: RegionName, gateways: Mapping[GatewayId, RegionName], since_ns: int, until_ns: int
) -> int:
    """Number of calls of a region's clients whose answer a gateway of another region began in that time."""
    others = {gateway for gateway, region in gateways.items() if region != home}
    return sum(
        each.region == home and each.gateway in others and since_ns <= each.first_ns < until_ns
        for each in calls
        if each.first_ns is not None
    )


def first_answer_s(
    calls: Iterable[SdkCall], home: RegionName, gateways: Container[GatewayId], since_ns: int
) -> float | None:
    """Seconds from `since_ns` until the first answer of one of these gateways to a call that a client of the region
    made after that; None: there was none."""
    times = [
        each.first_ns
        for each in calls
        if each.region == home and each.gateway in gateways and each.first_ns is not None and each.left_ns >= since_ns
    ]
    return (min(times) - since_ns) / _SECOND_NS if times else None


def _missing(
    calls: Iterable[SdkCall],
    lines: Iterable[AuditLine],
    owners: Iterable[OwnersSeen],
    gateways: Mapping[GatewayId, RegionName],
    until_ns: int,
) -> Iterator[HistoryViolation]:
    """Each region's clients have made calls, each gateway has written lines, and has said what it serves until an
    overlap of owners would have been too long."""
    asked = {each.region for each in calls}
    wrote = {each.gateway for each in lines}
    answered_ns = {gateway: each.at_ns for each in owners for gateway in each.replicas}
    for gateway, region in gateways.items():
        if region not in asked:
            yield HistoryViolation(RECORDED, region, "there is no call of its clients")
        if gateway not in wrote:
            yield HistoryViolation(RECORDED, gateway, "its audit log has no line of a request")
        if gateway not in answered_ns or answered_ns[gateway] < until_ns:
            detail = "it was not seen for as long as an overlap of owners takes to be a violation"
            yield HistoryViolation(RECORDED, gateway, detail)


def _unwritten(records: Iterable[AuditRecord]) -> Iterator[HistoryViolation]:
    for each in records:
        if isinstance(each, LostAuditLines):
            yield HistoryViolation("every end is written", each.gateway, f"{each.lines} lines were lost")


def _ends(lines: Iterable[AuditLine]) -> Iterator[HistoryViolation]:
    """A request ends once at the gateway that its client asked."""
    ended = Counter(each.request for each in lines if not each.origin_gateway)
    for request, count in ended.items():
        if count > 1:
            yield HistoryViolation("one end per request", request, f"it ended {count} times")


def _answers(
    calls: Iterable[SdkCall], lines: Iterable[AuditLine], killed: Container[str], unwritten: Container[str]
) -> Iterator[HistoryViolation]:
    """The end that a client saw is the one that its gateway wrote down."""
    ended = {each.request: each for each in lines if not each.origin_gateway}
    for call in calls:
        if not call.request_id:
            if call.ended_ns is not None and not call.fault:
                yield HistoryViolation("answers are the gateways'", str(call.region), "an answer names no request")
            continue
        line = ended.get(call.request_id)
        is_whole = call.ended_ns is not None and not call.fault
        if line is None and call.gateway in killed and (not is_whole or call.request_id in unwritten):
            continue
        if line is None:
            yield HistoryViolation("one end per request", call.request_id, "its client saw a head, and no line ends it")
            continue
        if call.gateway != line.gateway:
            detail = f"its head says '{call.gateway}', and {line.gateway} has its line"
            yield HistoryViolation("answers are the gateways'", call.request_id, detail)
        if is_whole:
            yield from _whole_answer(call, line)


def _whole_answer(call: SdkCall, line: AuditLine) -> Iterator[HistoryViolation]:
    if line.outcome != Outcome.COMPLETED:
        detail = f"its client has the whole answer, and it ended as {line.outcome}"
        yield HistoryViolation("answers are the gateways'", line.request, detail)
    elif line.processed is None:
        yield HistoryViolation("answers are the gateways'", line.request, "no replica is named that answered")
    elif call.ran_in != line.processed.region and not any(each.resume for each in line.attempts):
        detail = f"its head says {call.ran_in}, its line {line.processed.region}"
        yield HistoryViolation("answers are the gateways'", line.request, detail)


def _ended_between(calls: Iterable[SdkCall], times_ns: tuple[int, int]) -> set[str]:
    """Requests whose client had the end of the answer between two times."""
    first_ns, last_ns = times_ns
    return {each.request_id for each in calls if each.ended_ns is not None and first_ns <= each.ended_ns <= last_ns}


def _forwards(
    lines: Sequence[AuditLine], killed: Container[str], unwritten: Container[str]
) -> Iterator[HistoryViolation]:
    """A request that came from another gateway was sent by it, and as often; an answer that came from another gateway
    is in its log as well. `unwritten`: requests of which those that were killed may have no line."""
    sent: Counter[tuple[str, str, str]] = Counter()
    answered: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        for attempt in line.attempts:
            kind, _, target = attempt.target.partition(":")
            if kind == TargetKind.PEER:
                sent[line.request, line.gateway, target] += 1
                answered[line.request, line.gateway, target] += attempt.result == LegResult.COMPLETED
    came = Counter((each.request, each.origin_gateway, each.gateway) for each in lines if each.origin_gateway)
    written = {(each.request, each.gateway) for each in lines}
    for (request, origin, gateway), count in came.items():
        if origin in killed and (request, origin) not in written:
            continue
        if count > sent[request, origin, gateway]:
            detail = (
                f"{gateway} had it {count} times from {origin}, which sent it {sent[request, origin, gateway]} times"
            )
            yield HistoryViolation("nothing runs that was not sent", request, detail)
    for (request, origin, gateway), count in answered.items():
        if gateway in killed and request in unwritten:
            continue
        if count > came[request, origin, gateway]:
            detail = f"{gateway} answered {origin} {count} times, and has {came[request, origin, gateway]} lines of it"
            yield HistoryViolation(RECORDED, request, detail)


def _forbidden(records: Iterable[AuditRecord]) -> Iterator[HistoryViolation]:
    for each in records:
        if isinstance(each, ForbiddenPlace):
            detail = f"{each.peer} ran it in {each.processed.region}"
            yield HistoryViolation("nothing outside policy", each.request, detail)


def _overlaps(owners: Sequence[OwnersSeen], sound_ns: int, overlap_max_ns: int) -> Iterator[HistoryViolation]:
    for replica, (overlap_ns, gateways) in overlaps(owners, sound_ns).items():
        if overlap_ns > overlap_max_ns:
            detail = f"{' and '.join(gateways)} served it together for {overlap_ns / 1e9:.1f} s"
            yield HistoryViolation("stated overlap of owners", replica, detail)


def overlaps(owners: Sequence[OwnersSeen], since_ns: int) -> dict[str, tuple[int, tuple[GatewayId, ...]]]:
    """Longest time in which a replica had several owners, from `since_ns` on, with the owners at its end. A gateway
    that does not answer may still serve what it served: only its answer without the replica ends an overlap."""
    began: dict[str, int] = {}
    longest: dict[str, tuple[int, tuple[GatewayId, ...]]] = {}
    served: dict[GatewayId, frozenset[str]] = {}
    for seen in owners:
        if seen.at_ns < since_ns:
            continue
        served |= seen.replicas
        shared = _shared(seen.replicas)
        going_on = [replica for replica in _shared(served) if replica in began or replica in shared]
        began = {replica: began.get(replica, seen.at_ns) for replica in going_on}
        for replica, gateways in shared.items():
            overlap_ns = seen.at_ns - began[replica]
            if overlap_ns >= longest.get(replica, (0, ()))[0]:
                longest[replica] = overlap_ns, gateways
    return longest


def _shared(served: Mapping[GatewayId, frozenset[str]]) -> dict[str, tuple[GatewayId, ...]]:
    """Replicas that several gateways serve, with these gateways."""
    owners_of: dict[str, list[GatewayId]] = defaultdict(list)
    for gateway, replicas in served.items():
        for replica in replicas:
            owners_of[replica].append(gateway)
    return {replica: tuple(each) for replica, each in owners_of.items() if len(each) > 1}
