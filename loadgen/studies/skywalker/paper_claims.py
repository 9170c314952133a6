"""Holds the paper's figures (`claims.yaml`) against the pairs of runs that correspond to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.pages.markdown import listed
from loadgen.studies import numbers as of
from loadgen.studies.claims import Claim
from loadgen.studies.data import read_data
from loadgen.studies.numbers import Measure, Middle, inverse, measured, median_of, percent, ratio, times
from loadgen.studies.rendering import render_text
from loadgen.studies.skywalker.fleets import skewed_gain
from loadgen.studies.skywalker.plan import (
    BLIND,
    FLEETS_OF_CLAIM,
    OUTSTANDING_LIMITS,
    PENDING,
    SELECTIONS_OF_CLAIM,
    SKYWALKER,
    outstanding,
)
from loadgen.studies.skywalker.reader import SectionReader

_NAMED_MAX = 4


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """One figure of the paper, and the pairs that it speaks of."""

    what: str
    low: float
    high: float
    workloads: tuple[str, ...] = ()
    """Kinds of workloads."""
    systems: tuple[str, ...] = (SKYWALKER,)
    bases: tuple[str, ...] = ()
    measure: str = "THROUGHPUT"
    figure: str = ""
    """Name of pairs of Fig. 9 or Fig. 10, in place of workloads and systems."""
    is_inverse: bool = False
    """The ratios are those of the bases to the system."""
    more_is_better: bool = True
    is_share: bool = False
    is_input: bool = False
    why: str = ""
    """Template of the reason for a shortfall."""


def claims(reader: SectionReader) -> list[Claim]:
    return [_held(reader, each) for each in read_data("skywalker/claims.yaml", tuple[PaperClaim, ...])]


def _held(reader: SectionReader, claim: PaperClaim) -> Claim:
    measure: Measure = getattr(of, claim.measure)
    workloads = reader.as_published(*claim.workloads)
    ratios = reader.all_compared(workloads, claim.systems[0], claim.bases, measure)

    def medians(system: str, measure: Measure, workloads: Sequence[str]) -> list[float]:
        """Medians of the workloads that were played."""
        found = [median_of(reader.system(workload, system), measure) for workload in workloads]
        return [each for each in found if each is not None]

    def hits(system: str) -> str:
        return listed([percent(measured(reader.system(workload, system), of.HITS)) for workload in workloads])

    why = render_text(
        claim.why, reader=reader, workloads=workloads, measure=measure, medians=medians, hits=hits,
        furthest=lambda: _furthest(claim, ratios), selections=SELECTIONS_OF_CLAIM,
        ahead=lambda: [workload for (workload, _), each in ratios.items() if each.median < 1],
        skewed=listed([f"{times(skewed_gain(reader, count))} at {count}" for count in FLEETS_OF_CLAIM]),
    )  # fmt: skip
    return Claim(
        claim.what, claim.low, claim.high, _pairs(reader, claim, workloads, measure), claim.more_is_better,
        claim.is_share, claim.is_input, why,
    )  # fmt: skip


def _pairs(reader: SectionReader, claim: PaperClaim, workloads: Sequence[str], measure: Measure) -> list[Middle | None]:
    if claim.figure:
        return _pairs_of_figure(reader, claim.figure)
    if not claim.bases:
        return [measured(reader.system(workload, each), measure) for workload in workloads for each in claim.systems]
    found = reader.pairs(workloads, claim.systems[0], claim.bases, measure).values()
    return [inverse(each) if each and claim.is_inverse else each for each in found]


def _pairs_of_figure(reader: SectionReader, figure: str) -> list[Middle | None]:
    if figure == "skewed":
        return [skewed_gain(reader, count) for count in FLEETS_OF_CLAIM]
    found: list[Middle | None] = []
    for selection in SELECTIONS_OF_CLAIM:
        pending, blind = reader.pushing(selection, PENDING), reader.pushing(selection, BLIND)
        limited = [reader.pushing(selection, outstanding(limit)) for limit in OUTSTANDING_LIMITS]
        found += {
            "pushing_throughput": [ratio(pending, blind, of.THROUGHPUT)],
            "pushing_wait": [ratio(blind, pending, of.TTFT_P90)],
            "pushing_limited": [ratio(pending, runs, of.THROUGHPUT) for runs in limited],
            "pushing_hits": [measured(pending, of.HITS)],
            "blind_hits": [measured(blind, of.HITS)],
        }[figure]
    return found


def _furthest(claim: PaperClaim, ratios: dict[tuple[str, str], Middle]) -> str:
    """The pairs that are furthest from the weaker end of the paper's range."""
    limit = claim.low if claim.more_is_better else claim.high
    order = sorted(ratios, key=lambda place: ratios[place].median, reverse=not claim.more_is_better)
    short = [place for place in order if (ratios[place].median < limit) == claim.more_is_better]
    named = [f"{base} on {workload} (× {ratios[workload, base].median:.2f})" for workload, base in short[:_NAMED_MAX]]
    more = len(short) - len(named)
    return listed([*named, *([f"{more} more of {len(ratios)}"] if more else [])])
