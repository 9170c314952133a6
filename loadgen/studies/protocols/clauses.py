"""Verdicts on the predictions, clause by clause, counted from the figures. A clause that no run measures is struck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from loadgen.studies.balanceroute.tables import TOKENS, figure
from loadgen.studies.data import read_data
from loadgen.studies.numbers import median_of, ratio
from loadgen.studies.protocols import findings, judgement, plan
from loadgen.studies.protocols.judgement import Gain
from loadgen.studies.protocols.plan import Case
from loadgen.studies.protocols.record import ProtocolRecord


@dataclass(frozen=True, slots=True)
class Clause:
    """Bounds that a figure of each named run is expected to keep; a list that is empty names all."""

    says: str
    measure: str = ""
    least: float = -inf
    most: float = inf
    loads: list[str] = field(default_factory=list)
    procedures: list[str] = field(default_factory=list)
    rooms: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    contenders: list[str] = field(default_factory=list)
    at_once: bool | None = None
    is_some: bool = False
    """True where it is expected of at least one of the runs, and not of each."""
    struck: str = ""
    """Reason why it is not counted."""

    def has(self, gain: Gain) -> bool:
        case = gain.case
        named = (
            (self.loads, case.load.name),
            (self.procedures, case.procedure.name),
            (self.rooms, case.room_share),
            (self.batches, case.batch),
            (self.contenders, gain.contender.title),
        )
        is_named = all(not several or each in several for several, each in named)
        return is_named and self.at_once in (None, gain.at_once)


@dataclass(frozen=True, slots=True)
class Clauses:
    """Clauses of the three predictions."""

    first: list[Clause]
    longer: list[Clause]
    full: list[Clause]


@dataclass(frozen=True, slots=True)
class ClauseVerdict:
    """Number of the runs that a clause names, and of those that are as it says."""

    clause: Clause
    runs: int
    kept: int

    @property
    def holds(self) -> bool:
        return self.kept > 0 if self.clause.is_some else self.kept == self.runs


CLAUSES = read_data("protocols/clauses.yaml", Clauses)


def verdicts(record: ProtocolRecord, clauses: Sequence[Clause], cases: Iterable[Case]) -> Iterator[ClauseVerdict]:
    """ClauseVerdict on each clause, over those of the cases that were played."""
    gains = [
        judgement.gain(record, case, contender, at_once)
        for case in cases
        if record.has(case)
        for at_once in judgement.ways(case)
        for contender in case.contenders
        if contender in plan.OURS
    ]
    for clause in clauses:
        named = [] if clause.struck else [gain for gain in gains if clause.has(gain)]
        values = [_MEASURES[clause.measure](record, gain) for gain in named]
        yield ClauseVerdict(clause, len(values), sum(clause.least <= value <= clause.most for value in values))


def _faster(_record: ProtocolRecord, gain: Gain) -> float:
    return gain.faster.median


def _divided(_record: ProtocolRecord, gain: Gain) -> float:
    return gain.divided.median


def _perfect(_record: ProtocolRecord, gain: Gain) -> float:
    return gain.perfect


def _is_reached(_record: ProtocolRecord, gain: Gain) -> float:
    return gain.is_reached


def _is_divided(_record: ProtocolRecord, gain: Gain) -> float:
    return gain.is_divided


def _is_faster(_record: ProtocolRecord, gain: Gain) -> float:
    return gain.is_faster


def _held(record: ProtocolRecord, gain: Gain) -> float:
    return findings.held(record, gain).median


def _weighed(record: ProtocolRecord, gain: Gain) -> float:
    return findings.held_at_work(record, gain.case, gain.contender).median


def _running(record: ProtocolRecord, gain: Gain) -> float:
    """Share of a batch that runs in the mean over steps."""
    runs = record.runs(gain.case, gain.contender)
    return (median_of(runs, figure("running")) or 0.0) / plan.WORKERS / gain.case.batch


def _foreseen(record: ProtocolRecord, gain: Gain) -> float:
    return float(median([run["foreseen_share"] for run in record.runs(gain.case, gain.contender)]))


def _as_br_0(record: ProtocolRecord, gain: Gain) -> float:
    """Share of the seeds for which the run has BR-0's figures."""
    ours = record.runs(gain.case, gain.contender)
    return judgement.same_runs(ours, record.runs(gain.case, plan.BR_0)) / len(ours)


def _best(record: ProtocolRecord, gain: Gain) -> float:
    """Tokens per second over those of the best of all baselines."""
    best = judgement.strongest(record, gain.case, [each for each in gain.case.contenders if each not in plan.OURS])
    return _tokens_over(record, gain.case, gain, best)


def _nearer(record: ProtocolRecord, gain: Gain) -> float:
    """1 where tokens per second are nearer to JSQ's than in the same run as planned first, else 0."""
    long, short = (
        abs(_tokens_over(record, case, gain, plan.JSQ_POOLED) - 1) for case in (gain.case, replace(gain.case, times=1))
    )
    return long < short


def _tokens_over(record: ProtocolRecord, case: Case, gain: Gain, base: plan.Contender) -> float:
    found = ratio(record.runs(case, gain.contender), record.runs(case, base), TOKENS)
    assert found is not None, "runs with a throughput"
    return found.median


_MEASURES: dict[str, Callable[[ProtocolRecord, Gain], float]] = {
    "faster": _faster,
    "divided": _divided,
    "perfect": _perfect,
    "is_reached": _is_reached,
    "is_divided": _is_divided,
    "is_faster": _is_faster,
    "held": _held,
    "weighed": _weighed,
    "running": _running,
    "foreseen": _foreseen,
    "as_br_0": _as_br_0,
    "best": _best,
    "nearer": _nearer,
}
