"""Page of what tools of other projects measure: versions, commands, results, and counts beside the gateways' own.

It must never leave out a failure, nor call counts equal that are not.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.pages.markdown import NOTHING
from loadgen.studies.outside.counts import unexplained
from loadgen.studies.outside.outcomes import OutsideOutcome, RunOutcome
from loadgen.studies.outside.tools import OutsideTool
from loadgen.studies.rendering import render, shortened

_FAILURE_MAX = 1000
_WORDS = {
    "completed": "completed requests",
    "left": "requests left by the client",
    "failed": "failed requests",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
}


def page_of(outcome: OutsideOutcome, tools: tuple[OutsideTool, ...], machine: Mapping[str, object]) -> str:
    loads = [each.kept.load_average for each in outcome.runs]
    return render(
        "outside/page.j2", outcome=outcome, tools=tools, machine=machine,
        loads=(min(loads), max(loads)) if loads else None,
        rows=[row for each in outcome.runs for row in _rows(each)], equal=_equal(outcome), troubles=_troubles(outcome),
        shortened=shortened, words=_WORDS,
    )  # fmt: skip


def _rows(outcome: RunOutcome) -> list[list[str]]:
    name, rows = outcome.name, []
    for each in outcome.compared:
        verdict = "equal" if each.is_equal else f"{each.gateways - each.tool:+,}".replace("-", "−")
        rows.append([name, _WORDS[each.name], f"{each.tool:,}", f"{each.gateways:,}", verdict])
    return rows or [[name, NOTHING, NOTHING, NOTHING, "the tool reports no counts"]]


def _equal(outcome: OutsideOutcome) -> tuple[int, int]:
    """Number of equal counts, and of all that were compared."""
    pairs = [each for run in outcome.runs for each in run.compared]
    return sum(each.is_equal for each in pairs), len(pairs)


def _troubles(outcome: OutsideOutcome) -> list[str]:
    """Failures of all runs, each with its reason if one is known."""
    found = []
    for each in outcome.runs:
        name, status = each.name, each.kept.status
        if status is None:
            found.append(f"{name}: ended after {each.run.deadline_s:.0f} s, at its deadline.")
        elif status:
            found.append(f"{name}: exit status {status}{_because(each.run.ends_badly)}.")
        if each.unread:
            found.append(f"{name}: its report could not be read: `{shortened(each.unread)}`.")
        unknown = unexplained(each.compared, each.run.reasons)
        found += [f"{name}: {_WORDS[one.name]} differ, and the reason is not known." for one in unknown]
        found += [f"{name}: `{shortened(failure, _FAILURE_MAX)}`" for failure in each.reading.failures]
    return found


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
