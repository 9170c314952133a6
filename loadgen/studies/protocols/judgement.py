"""Compares the runs of a case with the paper's gains on the trace of that kind. It counts, and plays nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from loadgen.figures import Figures
from loadgen.studies.balanceroute.paper import aims_of
from loadgen.studies.balanceroute.tables import GAP, TOKENS
from loadgen.studies.numbers import Middle, median_of, ratio
from loadgen.studies.protocols.plan import AT_ONCE, JSQ_AT_ONCE, JSQ_POOLED, OURS, POOLED, Case, Contender, cases
from loadgen.studies.protocols.record import ProtocolRecord

NO_WORSE = 0.99
"""Least share of the best baseline's throughput that counts as no worse."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Gains of a run over the baselines that are sent requests in one way."""

    case: Case
    contender: Contender
    at_once: bool
    """True where the baselines were sent requests at once, as in the paper, and False where from the pool."""
    divided: Middle
    """JSQ's imbalance over the run's, by seed."""
    faster: Middle
    """Throughput over that of the strongest of those baselines, by seed."""
    strongest: Contender
    perfect: float
    """Median throughput of the strongest baseline's own requests in perfect balance, over its own."""

    @property
    def aims(self) -> tuple[float, float]:
        return aims_of(self.case.load.name)[self.contender.title]

    @property
    def is_divided(self) -> bool:
        return self.divided.median >= self.aims[0]

    @property
    def is_faster(self) -> bool:
        return self.faster.median >= self.aims[1]

    @property
    def is_reached(self) -> bool:
        return self.is_divided and self.is_faster


def ways(case: Case) -> tuple[bool, ...]:
    """Ways in which the case's baselines are sent requests: at once (True), and from the pool."""
    return (True, False) if case.procedure.has_at_once else (False,)


def baselines(at_once: bool) -> Sequence[Contender]:
    return AT_ONCE if at_once else POOLED


def jsq(at_once: bool) -> Contender:
    return JSQ_AT_ONCE if at_once else JSQ_POOLED


def strongest(record: ProtocolRecord, case: Case, among: Sequence[Contender]) -> Contender:
    """The contender with most tokens per second, by medians."""
    return max(among, key=lambda each: median_of(record.runs(case, each), TOKENS) or 0.0)


def gain(record: ProtocolRecord, case: Case, contender: Contender, at_once: bool) -> Gain:
    ours = record.runs(case, contender)
    base = strongest(record, case, [each for each in baselines(at_once) if each in case.contenders])
    base_runs = record.runs(case, base)
    divided = ratio(record.runs(case, jsq(at_once)), ours, GAP)
    faster = ratio(ours, base_runs, TOKENS)
    assert divided is not None, "runs with an imbalance"
    assert faster is not None, "runs with a throughput"
    perfect = median([run["perfect"] for run in base_runs])
    return Gain(case, contender, at_once, divided, faster, base, perfect)


def gains(record: ProtocolRecord) -> Iterator[Gain]:
    """Gains of every run in every case that was played, over the baselines sent at once and from the pool."""
    for case in cases():
        if record.has(case):
            for at_once in ways(case):
                for contender in OURS:
                    yield gain(record, case, contender, at_once)


@dataclass(frozen=True, slots=True)
class Slower:
    """A run with less throughput than the best of all baselines of its case, by more than is allowed."""

    case: Case
    contender: Contender
    best: Contender
    faster: Middle


def slower(record: ProtocolRecord) -> Iterator[Slower]:
    for case in cases():
        if not record.has(case):
            continue
        best = strongest(record, case, [each for each in case.contenders if each not in OURS])
        for contender in OURS:
            faster = ratio(record.runs(case, contender), record.runs(case, best), TOKENS)
            if faster is not None and faster.median < NO_WORSE:
                yield Slower(case, contender, best, faster)


def same_runs(one: Sequence[Figures], other: Sequence[Figures]) -> int:
    """Number of seeds for which two runs made the same decisions, as far as their figures tell."""
    return sum(a["gap"] == b["gap"] and a["tokens_per_s"] == b["tokens_per_s"] for a, b in zip(one, other, strict=True))
