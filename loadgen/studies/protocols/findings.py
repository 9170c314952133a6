"""Findings of the study, counted from its figures: where gains are reached, what the pool alone gains, what predictors
foresee, and which horizon and discount are best. It plays nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from loadgen.figures import Figures
from loadgen.studies.balanceroute.tables import GAP, TOKENS, figure
from loadgen.studies.numbers import Middle, ratio
from loadgen.studies.protocols import judgement, plan
from loadgen.studies.protocols.judgement import Gain, Slower
from loadgen.studies.protocols.plan import Case, Contender
from loadgen.studies.protocols.record import ProtocolRecord

FEW = 0.01
"""Share of ends below which a predictor counts as foreseeing next to nothing."""
HELD_ENOUGH = 0.95
"""Least share of the baseline's KV tokens with which a run counts as holding as much."""
_HELD = figure("mean")


@dataclass(frozen=True, slots=True)
class Reached:
    """Numbers of comparisons that reach the paper's gains."""

    title: str
    comparisons: int
    divided: int
    faster: int
    both: int


def reached_by_protocol(gains: Sequence[Gain]) -> Iterator[Reached]:
    for procedure in plan.PROCEDURES:
        for room in procedure.rooms:
            alike = [each for each in gains if (each.case.procedure, each.case.room_share) == (procedure, room)]
            if alike:
                yield _counted(f"{procedure.title}, {'limited' if room else 'unlimited'} caches", alike)


def _counted(title: str, alike: Sequence[Gain]) -> Reached:
    divided, faster = sum(each.is_divided for each in alike), sum(each.is_faster for each in alike)
    return Reached(title, len(alike), divided, faster, sum(each.is_reached for each in alike))


def counted_longer(gains: Sequence[Gain]) -> Reached:
    return _counted("longer runs", gains)


def held(record: ProtocolRecord, gain: Gain) -> Middle:
    """KV tokens that the run holds, over those that the strongest baseline holds, seed by seed."""
    found = ratio(record.runs(gain.case, gain.contender), record.runs(gain.case, gain.strongest), _HELD)
    assert found is not None, "runs that hold tokens"
    return found


def holding_enough(record: ProtocolRecord, reached: Sequence[Gain]) -> int:
    """Number of the gains whose runs hold as much as the baseline."""
    return sum(held(record, each).median >= HELD_ENOUGH for each in reached)


def without_longer(record: ProtocolRecord, reached: Sequence[Gain]) -> dict[str, int]:
    """Number of the gains, by load, for which no longer run of that load, procedure and cache was played."""
    longer = {_kind(case) for case in plan.LONG_CASES if record.has(case)}
    return dict(Counter(each.case.load.brief for each in reached if _kind(each.case) not in longer))


def _kind(case: Case) -> tuple[str, str, float]:
    return case.load.name, case.procedure.name, case.room_share


def held_at_work(record: ProtocolRecord, case: Case, contender: Contender) -> Middle:
    """Tokens per second times the KV tokens of a running request, over those of JSQ from the pool. Where tokens
    per second are nothing but how many requests fit into full caches, the two trade places."""
    found = ratio(record.runs(case, contender), record.runs(case, plan.JSQ_POOLED), _held_at_work)
    assert found is not None, "runs with requests"
    return found


def _held_at_work(run: Figures) -> float:
    return float(run["tokens_per_s"] * run["mean"] / run["running"])


def pool_alone(record: ProtocolRecord) -> tuple[float, float] | None:
    """Lowest and highest gain in tokens per second that JSQ has from the pool alone, over the cases. None: none was
    played with baselines at once."""
    found = []
    for case in plan.cases():
        if case.procedure.has_at_once and record.has(case):
            base = judgement.strongest(record, case, plan.AT_ONCE)
            gained = ratio(record.runs(case, plan.JSQ_POOLED), record.runs(case, base), TOKENS)
            assert gained is not None, "runs with a throughput"
            found.append(gained.median)
    return (min(found), max(found)) if found else None


def limited(slower: Sequence[Slower]) -> int:
    """Number of the slower runs whose KV caches are limited."""
    return sum(each.case.room_share > 0 for each in slower)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Ends that a predictor foresees, over all cases."""

    contender: Contender
    cases: int
    silent: int
    """Cases in which it foresees fewer than `FEW` of the ends."""
    runs: int
    as_br_0: int
    """Runs, over cases and seeds, that have BR-0's figures."""


def foreseen_by(record: ProtocolRecord, contender: Contender) -> Foreseen:
    silent = runs = as_br_0 = 0
    played = [case for case in plan.cases() if record.has(case)]
    for case in played:
        ours = record.runs(case, contender)
        silent += median([run["foreseen_share"] for run in ours]) < FEW
        runs += len(ours)
        as_br_0 += judgement.same_runs(ours, record.runs(case, plan.BR_0))
    return Foreseen(contender, len(played), silent, runs, as_br_0)


@dataclass(frozen=True, slots=True)
class Extreme:
    """Horizon and discount with the largest or smallest of a gain."""

    at: tuple[int, float]
    gain: float


def cross_extremes(
    record: ProtocolRecord, case: Case, contender: Contender
) -> tuple[Extreme, Extreme, Extreme, Extreme]:
    """Largest and smallest division of JSQ's imbalance, then most and fewest tokens per second over JSQ's."""
    base = record.runs(case, plan.JSQ_POOLED)
    divided, faster = [], []
    for at in plan.CROSS:
        runs = record.runs(case, contender, at)
        less, more = ratio(base, runs, GAP), ratio(runs, base, TOKENS)
        assert less is not None, "runs with an imbalance"
        assert more is not None, "runs with a throughput"
        divided.append(Extreme(at, less.median))
        faster.append(Extreme(at, more.median))
    return (*_ends(divided), *_ends(faster))


def _ends(several: Sequence[Extreme]) -> tuple[Extreme, Extreme]:
    return max(several, key=_gain), min(several, key=_gain)


def _gain(extreme: Extreme) -> float:
    return extreme.gain
