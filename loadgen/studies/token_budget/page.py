"""Assembles the token-budget page from its sections: at the paper's own settings first, and then where they do not
hold."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.pages.markdown import bullets, listed
from loadgen.studies.skywalker.reader import Section
from loadgen.studies.token_budget import tables
from loadgen.studies.token_budget.notes import NOTES
from loadgen.studies.token_budget.tables import Reader
from loadgen.studies.token_budget.workloads import WORKLOADS

NAME = "token-budget.md"


def page_of(reader: Reader, elsewhere: Mapping[str, str]) -> dict[str, str]:
    """Contents by file name: the page and its plot. `elsewhere` holds sections that other commands wrote, by their
    headings."""
    found = [
        _head(reader),
        tables.table_2(reader),
        tables.figure_6(reader),
        tables.real(reader),
        tables.table_3(reader),
        tables.table_5(),
        _elsewhere(elsewhere),
        tables.tuned(reader),
        tables.whole_days(reader),
    ]
    text = "\n".join(each.text for each in found)
    return {NAME: text} | {name: plot for each in found for name, plot in each.plots.items()}


def _head(reader: Reader) -> Section:
    missing = [each.title for name, each in WORKLOADS.items() if name not in reader.present]
    lacking = f" Not found, and left out: {listed(missing)}." if missing else ""
    small = "\n**A small one**: its figures say nothing.\n" if reader.quick else ""
    return Section(f"""# Token-budget pools

Written by `make results NAME=token-budget TRACES=dir`; do not edit. It holds pools by length against what the
token-budget paper (arXiv 2604.09613) published.{lacking} Table 4, and what tells texts apart, are on
[a page of their own](token-budget-classifier.md). How to plan a fleet of one's own:
[docs/pools.md](../pools.md).
{small}
Fleets are sized for 1,000 requests/s of Llama-3-70B on pairs of A100s with the paper's timing (t = 8 ms + 0.65 ms ×
sequences in the batch, 512 prompt tokens an iteration, 65,536 KV blocks of 16). *By formula* is the paper's Eq. 8
with its headroom. *As played* counts instances from what one of each pool carries with the engine model in the
steady state, in virtual time, seed 42: TTFT ≤ 2 s and TPOT ≤ 80 ms for all but 1 % of all requests, of which each
pool may have half; nobody preempted. *Reserved*: slots are whole windows (the paper's). *Paged*: slots are what
requests are likely to hold, with three deviations to spare, as an engine with paged KV runs. Costs multiply by the
GPUs of an instance (two), which the paper's do not.

## What was found

{bullets(NOTES)}""")


def _elsewhere(sections: Mapping[str, str]) -> Section:
    return Section("\n".join(f"## {title}\n\n{text}" for title, text in sections.items()))
