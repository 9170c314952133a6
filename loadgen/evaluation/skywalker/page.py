"""The page of SkyWalker's evaluation, put together from its sections: figures beside the paper's, and what they say."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.evaluation.markdown import listed
from loadgen.evaluation.playing import Results
from loadgen.evaluation.skywalker.beyond import beyond
from loadgen.evaluation.skywalker.comparison import comparison
from loadgen.evaluation.skywalker.fleets import day, skewed
from loadgen.evaluation.skywalker.paper_claims import claims
from loadgen.evaluation.skywalker.plan import GKE, SGLANG, SGLANG_04, Evaluation
from loadgen.evaluation.skywalker.pushing import pushing
from loadgen.evaluation.skywalker.reader import Reader
from loadgen.evaluation.skywalker.sensitivity import sensitivity
from loadgen.evaluation.skywalker.slots import agreement, scale
from loadgen.figures import Figures

_SECTIONS = (claims, comparison, pushing, skewed, day, sensitivity, beyond)


def page_of(plan: Evaluation, results: Results, others: Mapping[str, Figures]) -> dict[str, str]:
    """By file name: the page and its plots. `others` is what was measured elsewhere, by slot."""
    reader = Reader(plan, results)
    sections = [section(reader) for section in _SECTIONS]
    sections += [agreement(others), scale(others)]
    page = "\n".join([_head(plan), *(section.text for section in sections)])
    plots = {name: plot for section in sections for name, plot in section.plots.items()}
    return {"skywalker.md": page} | plots


def _head(plan: Evaluation) -> str:
    size = "the full evaluation (`FULL=1`)" if plan.full else "the default: few seeds, short runs, parts of the traces"
    combinations = sum(len(each.points) * len(each.runs) for each in plan.experiments)
    return f"""# SkyWalker's evaluation, in virtual time

Written by `make results-skywalker TRACES=dir`; do not edit. This is {size}. Seeds {listed(list(map(str, plan.seeds)))};
{combinations} combinations of workload, fleet and system. {_recorded(plan)}

The gateways' own cores decide, on modelled engines: Llama-3.1-8B on an L4 as in the paper's §5.1, and on an H100 for
recorded prompts, which are longer than an L4 holds. The paper's conversations are not at hand. Ours are generated to be
alike in what the paper says of them: numbers of clients, hit rates, how much prompts share, and memory as the limit, at
20 to 50 requests an engine; not in their words. So figures are compared as ratios of runs that were asked the same,
paired by seed: the median of the seeds, and in brackets the lowest and the highest. What is called SkyWalker is the
paper's algorithm, whatever our defaults are.

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
        return "No traces were given: all workloads are generated from the seeds, and the recorded ones are missing."
    return f"Recorded: {listed(found)}. All else is generated from the seeds."
