"""Assembles the page of SkyWalker's evaluation from its sections: figures beside the paper's, and sentences derived
from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from gateway.core.kernel.config import PlacementPolicy
from loadgen.figures import Figures
from loadgen.pages.markdown import bullets, listed
from loadgen.studies.cells import Results
from loadgen.studies.skywalker.beyond import beyond, unseen
from loadgen.studies.skywalker.comparison import comparison
from loadgen.studies.skywalker.fleets import day, skewed
from loadgen.studies.skywalker.paper_claims import claims
from loadgen.studies.skywalker.plan import (
    GKE,
    SGLANG,
    SGLANG_04,
    SKYWALKER,
    WORTH,
    WORTH_AND_CREDIT,
    Evaluation,
    worth_trials,
)
from loadgen.studies.skywalker.pushing import pushing
from loadgen.studies.skywalker.reader import Reader, Section
from loadgen.studies.skywalker.sensitivity import defaults, sensitivity
from loadgen.studies.skywalker.slots import agreement, scale

_DAY = ("day, pooled", "day, alone")
_TRIED = ("sensitivity", "improvement")
_SECTIONS: tuple[tuple[Callable[[Reader], Section], tuple[str, ...]], ...] = (
    (claims, ("fig8", "fig9", "fig10")),
    (comparison, ("fig8",)),
    (pushing, ("fig9",)),
    (skewed, ("fig10",)),
    (day, _DAY),
    (sensitivity, _TRIED[:1]),
    (defaults, _TRIED),
    (beyond, _TRIED[1:]),
    (unseen, ("unseen",)),
)
"""Sections with the experiments that they need, as beginnings of the experiments' names."""


def page_of(
    plan: Evaluation, results: Results, others: Mapping[str, Figures | None], played: Collection[str] | None = None
) -> dict[str, str]:
    """Contents by file name: the page and its plots. `others` holds measurements of other commands, by slot; `played`
    names the experiments that were selected, all of them if it is not given."""
    reader = Reader(plan, results)
    left_out = [each.name for each in plan.experiments if played is not None and each.name not in played]
    sections = [section(reader) for section, needs in _SECTIONS if not any(map(_begins(needs), left_out))]
    sections += [agreement(others), scale(others)]
    head = [_head(plan, left_out), _partial(plan, left_out), _failed(results), _SHAPES]
    page = "\n".join([*filter(None, head), *(section.text for section in sections)])
    plots = {name: plot for section in sections for name, plot in section.plots.items()}
    return {"skywalker.md": page} | plots


def _head(plan: Evaluation, left_out: Sequence[str]) -> str:
    size = (
        "the full evaluation (`FULL=1`)"
        if plan.full
        else "the short one (without `FULL=1`): few seeds, short runs, parts of the traces"
    )
    combinations = sum(len(each.points) * len(each.runs) for each in plan.experiments if each.name not in left_out)
    return f"""# SkyWalker's evaluation, in virtual time

Written by `make results NAME=skywalker TRACES=dir`; do not edit. This is {size}. Seeds
{listed(list(map(str, plan.seeds)))}, and others where a section says so; {combinations} combinations of workload,
fleet and system. {_recorded(plan)}

The gateways' own cores decide, on modelled engines: Llama-3.1-8B on an L4 as in the paper's §5.1, and on an H100 for
recorded prompts, which are longer than an L4 holds. Figures are compared as ratios of runs that were asked the same,
paired by seed: the median of the seeds, and in brackets the lowest and the highest. A dash stands where there is
nothing to show.

What is called `{SKYWALKER}` is the paper's algorithm, with all its settings written into each run: `explore_rule:
share`, half a match, and no in-band credit. A region file that says `policy: prefix` and nothing else has others,
`explore_rule: {WORTH}` and a credit of 4. No run of these experiments has them but those that say so: `{WORTH}` is the
paper's algorithm with that one rule of ours, `{WORTH_AND_CREDIT}` has both. [Beyond the paper](#beyond-the-paper) tells
what they change, and [Defaults chosen](#defaults-chosen) how they came to be the defaults of this policy. A region file
that says nothing has another policy, `{PlacementPolicy.COST}`, and no run here has that:
[placement.md](placement.md#beside-the-papers-own-rules) tells where that one beats the paper's, and where it does not.

`{GKE}` stands for a multi-cluster gateway: it fills its own region up to 24 requests a replica, then the nearest region
with room, and pushes beyond that once all are full; replicas of a region take turns. `{SGLANG}` has its router's
thresholds of today (0.3, 64, 1.5), `{SGLANG_04}` those of the paper's time (0.5, 32, 1.0001).
"""


def _recorded(plan: Evaluation) -> str:
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


def _begins(needs: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.startswith(needs)


def _partial(plan: Evaluation, left_out: Sequence[str]) -> str:
    if not left_out:
        return ""
    played = [each.name for each in plan.experiments if each.name not in left_out]
    return f"**A part of it:** only {listed(played)}; sections that need more are left out.\n"


def _failed(results: Results) -> str:
    """Names of the cells without figures: medians beside them have fewer seeds, or are a dash."""
    if not results.failures:
        return ""
    named = [f"{title}: {' '.join(reason.split())}" for title, reason in sorted(results.failures.items())]
    return (
        f"**{len(named)} cells could not be played**; they count nowhere, and medians beside them are of fewer"
        " seeds:\n\n" + bullets(named)
    )


_SHAPES = f"""## What is ours, and what that means

The paper's conversations are not at hand, and it tells little of its trees. What stands for them was made so:

- The workloads' shapes were fitted by hand, over several trials, to the paper's hit rates, numbers of clients and
  memory pressure (20 to 50 requests an engine), while ratios of SkyWalker to baselines were in sight.
- ToT's answers have 340 tokens in the median. It was chosen, after 160, 300 and 420, such that Fig. 9 shows the paper's
  gap between BP and SP-P. So Fig. 9's ratio is partly calibrated, not independent; Fig. 8's trees use the same length.
- Which fleet served what is our assumption: 4/4/4 replicas for Arena, 3/3/2 for WildChat. Both are shown for each.
- The capacity of `{GKE}`, 24 requests a replica, is our choice.
- The 128 bytes of `{WORTH}` come from {worth_trials("the workloads of [Beyond the paper](#beyond-the-paper)")}.
  The others were not used for it, nor were those of [What nothing was fitted to](#what-nothing-was-fitted-to).
- What the day's SLO is measured by was changed after results were seen; every level is shown.
- Reasons beside figures are what we suspect. No cause was tested by itself.
"""
