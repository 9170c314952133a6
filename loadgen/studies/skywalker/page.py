"""Page of SkyWalker's evaluation: figures beside the paper's, and sentences derived from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementPolicy
from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, listed
from loadgen.studies.cells import Results
from loadgen.studies.claims import CLOSE, Claim
from loadgen.studies.rendering import render
from loadgen.studies.skywalker import comparison, fleets, pushing, sensitivity
from loadgen.studies.skywalker.best_hits import BestHits
from loadgen.studies.skywalker.judgement import MAY_LOSE, SAME, judgement
from loadgen.studies.skywalker.paper_claims import claims
from loadgen.studies.skywalker.plan import (
    AXES,
    FLEETS_OF_CLAIM,
    PAPER_FLEETS,
    SKYWALKER,
    VARIATIONS,
    SkyWalkerEvaluation,
    worth_trials,
)
from loadgen.studies.skywalker.reader import SectionReader

SLOTS = ("agreement", "scale")
"""Names of files with results of other commands beside the page, without `.json`."""
_PLOTS = {
    "pushing": ("skywalker-fig9.svg", ("fig9",), pushing.pushing_plot),
    "skewed": ("skywalker-fig10.svg", ("fig10",), fleets.skewed_plot),
    "day": ("skywalker-day.svg", ("day, pooled", "day, alone"), fleets.day_plot),
}
"""File of each plot, and the experiments that it needs."""


def page_of(
    plan: SkyWalkerEvaluation,
    results: Results,
    others: Mapping[str, Figures | None],
    played: Collection[str] | None = None,
    offline: Mapping[str, Sequence[BestHits]] | None = None,
) -> dict[str, str]:
    """Contents by file name: the page and its plots. `others` holds measurements of other commands, by slot; `played`
    names the experiments that were selected, all of them if it is not given. `offline`: hit rates of Fig. 6, by
    workload and seed."""
    reader = SectionReader(plan, results)
    left_out = [each.name for each in plan.experiments if played is not None and each.name not in played]

    def shown(*needs: str) -> bool:
        """True if all experiments were selected whose names begin so."""
        return not any(name.startswith(needs) for name in left_out)

    plots = {name: plot(reader) for name, needs, plot in _PLOTS.values() if shown(*needs)}
    made = claims(reader) if shown("fig8", "fig9", "fig10") else []
    short = [claim for claim in made if claim.is_short]
    judged, reached = sum(not claim.is_input for claim in made), sum(claim.is_reached for claim in made)
    text = render(
        "skywalker/page.j2", plan=plan, reader=reader, shown=shown, others=others, size=_size(plan),
        recorded=_recorded(plan), left_out=left_out, default_policy=PlacementPolicy.COST, worth_trials=worth_trials,
        played=[each.name for each in plan.experiments if each.name not in left_out],
        combinations=sum(len(each.points) * len(each.runs) for each in plan.experiments if each.name not in left_out),
        failed=[f"{title}: {' '.join(reason.split())}" for title, reason in sorted(results.failures.items())],
        variations=VARIATIONS, verdicts=_verdicts(plan, results, made, shown), offline=_offline_rows(offline or {}),
        claims=made, rows_of_claims=[claim.cells() for claim in made], judged=judged,
        untold=judged - reached - len(short), short=short, close=CLOSE,
        paper_fleets=PAPER_FLEETS, skewed_fleets=FLEETS_OF_CLAIM, where_behind=comparison.where_behind,
        compared=list(comparison.compared(reader, plots)) if shown("fig8") else [], pushing=pushing,
        fleets=fleets, plot_names={slot: name for slot, (name, _, _) in _PLOTS.items()},
        axes=AXES, choice=sensitivity.choice, workloads=sensitivity.tried_workloads,
        same=SAME, may_lose=MAY_LOSE, defaults=sensitivity.defaults, judgement=judgement,
        explore_rule=CoreConfig().placement.explore_rule, skywalker=SKYWALKER,
    )  # fmt: skip
    return {"skywalker.md": text, **plots}


def _verdicts(
    plan: SkyWalkerEvaluation, results: Results, made: Sequence[Claim], shown: Callable[[str], bool]
) -> list[list[str]]:
    """Row for each judged figure of the paper: its name, its verdict, and the one under each variation that may change
    it. The last row counts those that are reached."""
    columns = [made]
    for variation in VARIATIONS:
        is_played = shown(variation.name)
        columns.append(claims(SectionReader(plan.under(variation.name), results)) if made and is_played else [])
    judged = [place for place, claim in enumerate(made) if not claim.is_input]
    rows = [[made[place].what, *(_verdict(column, made, place) for column in columns)] for place in judged]
    reached = [str(sum(each.is_reached for each in column)) if column else NOTHING for column in columns]
    return [*rows, ["reached", *reached]]


def _verdict(column: Sequence[Claim], made: Sequence[Claim], place: int) -> str:
    """Verdict in a column; a dash where it was not played, or no pair of it differs from the first column's."""
    if not column or (column is not made and column[place].pairs == made[place].pairs):
        return NOTHING
    return column[place].verdict


def _offline_rows(offline: Mapping[str, Sequence[BestHits]]) -> list[tuple[str, str, str, str]]:
    """Rows of Fig. 6: medians of the seeds."""
    found = []
    for workload, seeds in offline.items():
        hashed, best = median(each.hashed for each in seeds), median(each.best for each in seeds)
        found.append((workload, f"{hashed:.1%}", f"{best:.1%}", f"{100 * (best - hashed):.1f}"))
    return found


def _size(plan: SkyWalkerEvaluation) -> str:
    if plan.full:
        return "the full evaluation (`FULL=1`)"
    return "the short one (without `FULL=1`): few seeds, short runs, parts of the traces"


def _recorded(plan: SkyWalkerEvaluation) -> str:
    names = {
        "Mooncake's conversation trace": plan.traces.mooncake,
        "agentic coding sessions": plan.traces.sessions,
        "GSM8K's questions": plan.traces.gsm8k,
    }
    found = [name for name, file in names.items() if file is not None]
    if not found:
        return "No traces were given: generated workloads only, made from the seeds; the recorded ones are missing."
    missing = [name for name, file in names.items() if file is None]
    left_out = f" Not found, and left out: {listed(missing)}." if missing else ""
    return f"Recorded: {listed(found)}.{left_out} All else is generated from the seeds."
