"""Page of ELDR: the aims and by how much they are missed, then every figure with the paper's beside it. It plays
nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.figures import Figures
from loadgen.studies.eldr import spreads
from loadgen.studies.eldr.paper import PAPER, intercept_in_experts
from loadgen.studies.eldr.plan import BALANCERS, EldrResults
from loadgen.studies.eldr.requests import Requests
from loadgen.studies.eldr.unions import BATCHES, mean_union
from loadgen.studies.eldr.workloads import DRIFTED
from loadgen.studies.rendering import render, signed

NAME = "eldr.md"
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
        policies=_POLICIES, batches=BATCHES, change=_change, union=_union, rates=_rates, rows=rows,
        within=", ".join(within) or "none", intercept_in_experts=intercept_in_experts(),
        drifted_share=sum(DRIFTED[name] for name in DRIFTED if name not in spreads.TASKS) / sum(DRIFTED.values()),
    )  # fmt: skip


def _union(requests: Requests, batch: int) -> str:
    mixed, one = (mean_union(requests, batch, is_mixed=each) for each in (True, False))
    return f"{mixed:.1f} → {one:.1f} ({signed(one / mixed - 1)})"


def _rates(found: dict[tuple[str, float], Figures]) -> list[float]:
    return sorted({rate for _, rate in found})


def _change(found: dict[tuple[str, float], Figures], others: Sequence[str], figure: str) -> str:
    """Mean change over rates by ELDR, against the best of the others at each rate."""
    changes = [
        found["eldr", rate][figure] / min(found[each, rate][figure] for each in others) - 1 for rate in _rates(found)
    ]
    return signed(sum(changes) / len(changes))
