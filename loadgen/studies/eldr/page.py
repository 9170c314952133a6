"""Page of ELDR: the aims and by how much they are missed, then every figure with the paper's beside it. It plays
nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING
from loadgen.studies.eldr import spreads
from loadgen.studies.eldr.paper import PAPER, aims_of, intercept_in_experts
from loadgen.studies.eldr.plan import BALANCERS, EldrResults
from loadgen.studies.eldr.requests import Requests
from loadgen.studies.eldr.unions import BATCHES, mean_union
from loadgen.studies.eldr.workloads import DRIFTED
from loadgen.studies.numbers import Middle, middle_of
from loadgen.studies.rendering import render, signed

NAME = "eldr.md"
_Main = Mapping[tuple[str, float], Sequence[Figures]]
"""Figures of each seed, by policy and rate."""
_POLICIES = {
    "random": "random",
    "round_robin": "round robin",
    "power_of_two": "power of two choices",
    "join_shortest_queue": "join shortest queue",
    "domain": "Domain (told the label)",
    "eldr": "ELDR",
}


def page_of(results: EldrResults, *, quick: bool) -> str:
    def rows(section: str, workload: str) -> list[tuple[str, Figures]]:
        return [(row, each) for (name, row), each in results.sections[section].items() if name == workload]

    within = [
        f"{workers} {core}"
        for (workers, core), each in results.costs.items()
        if each["all"]["p50_ms"] <= PAPER["route_ms"]
    ]
    return render(
        "eldr/page.j2", results=results, sizes=results.sizes, quick=quick, paper=PAPER, spreads=spreads,
        has_recording=any(each.name == "recorded" for each in results.workloads), balancers=BALANCERS,
        policies=_POLICIES, batches=BATCHES, changes=_changes, shown=_shown, median=_median,
        aim_cells=aim_cells, aims_of=aims_of, busiest=_busiest, below_domain=below_domain(results),
        union=_union, share_read=_share_read, rates=_rates, rows=rows,
        within=", ".join(within) or "none", intercept_in_experts=intercept_in_experts(),
        drifted_share=sum(DRIFTED[name] for name in DRIFTED if name not in spreads.TASKS) / sum(DRIFTED.values()),
    )  # fmt: skip


def _union(requests: Requests, batch: int) -> str:
    mixed, one = (mean_union(requests, batch, is_mixed=each) for each in (True, False))
    return f"{mixed:.1f} → {one:.1f} ({signed(one / mixed - 1)})"


def _share_read(requests: Requests, batch: int) -> float:
    """Share of a layer's experts that a batch of mixed requests reads."""
    return mean_union(requests, batch, is_mixed=True) / requests.shape.experts


def _rates(found: _Main) -> list[float]:
    return sorted({rate for _, rate in found})


def _changes(found: _Main, others: Sequence[str], figure: str) -> Middle:
    """Mean change over rates by ELDR, against the best of the others at each rate; median and range of the seeds."""
    rates = _rates(found)
    seeds = len(found["eldr", rates[0]])
    changes = [[_change(found, others, figure, rate, seed) for rate in rates] for seed in range(seeds)]
    middle = middle_of([fmean(each) for each in changes])
    assert middle is not None, "at least one seed"
    return middle


def _change(found: _Main, others: Sequence[str], figure: str, rate: float, seed: int) -> float:
    best = min(found[each, rate][seed][figure] for each in others)
    return float(found["eldr", rate][seed][figure] / best - 1)


def _shown(middle: Middle) -> str:
    return f"{signed(middle.median)} ({signed(middle.low)} to {signed(middle.high)})"


_OTHERS = {"experts": ("round_robin",), "tpot_p50_ms": BALANCERS, "tpot_p99_ms": BALANCERS}
"""Policies that ELDR is compared with, by figure."""


def aim_cells(workload: str, found: _Main) -> list[str]:
    """Changes of each figure that has an aim, marked where the median of the seeds meets it, and the number met."""
    aims = aims_of(workload)
    changes = {figure: _changes(found, others, figure) for figure, others in _OTHERS.items()}
    met = [figure for figure, most in aims.items() if changes[figure].median <= most]
    marked = [f"{_shown(change)}{' ✓' if figure in met else ''}" for figure, change in changes.items()]
    return [*marked, f"{len(met)} of {len(aims)}" if aims else NOTHING]


def _busiest(found: _Main, policy: str) -> float:
    """Load of the busiest worker over the mean of all: median of the seeds, mean over rates."""
    return fmean([_median(found[policy, rate], "busiest") for rate in _rates(found)])


def below_domain(results: EldrResults) -> list[str]:
    """Titles of the workloads in which ELDR's median TPOT is below Domain's."""
    return [
        each.title
        for each in results.workloads
        if _changes(results.main[each.name], ("domain",), "tpot_p50_ms").median < 0
    ]


def _median(runs: Sequence[Figures], figure: str) -> float:
    return float(median([run[figure] for run in runs]))
