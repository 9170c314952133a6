"""Page of what tools of other projects measure: versions, commands, results, and counts beside the gateways' own.

It must never leave out a failure, nor call counts equal that are not.
"""

from __future__ import annotations

from loadgen.pages.markdown import NOTHING
from loadgen.studies.outside.counts import Compared
from loadgen.studies.outside.outcomes import OutsideOutcome, RunOutcome
from loadgen.studies.outside.soak_page import soak_section
from loadgen.studies.outside.tokenizer import TOKENIZER
from loadgen.studies.outside.tools import OutsideTool
from loadgen.studies.rendering import render, shortened

_FAILURE_MAX = 1000
_REASON_MAX = 160
_WORDS = {
    "completed": "completed requests",
    "left": "requests left by the client",
    "failed": "failed requests",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
}
_WITHOUT_ENGINES = "; it needs the tool, and real engines, which `.ci/setup-engines llamacpp` sets up"


def page_of(outcome: OutsideOutcome, tools: tuple[OutsideTool, ...]) -> str:
    loads = [each.kept.load_average for each in outcome.runs]
    return render(
        "outside/page.j2", outcome=outcome, tools=tools, machine=outcome.setup.machine,
        loads=(min(loads), max(loads)) if loads else None,
        rows=[row for each in outcome.runs for row in _rows(each)], equal=_equal(outcome), troubles=_troubles(outcome),
        quoted=_quoted, words=_WORDS, tokenizer=TOKENIZER,
        soak="" if outcome.soak is None else soak_section(*outcome.soak),
    )  # fmt: skip


def _rows(outcome: RunOutcome) -> list[list[str]]:
    name, rows = outcome.name, []
    for each in outcome.compared:
        verdict = "equal" if each.is_equal else _signed(each.difference)
        rows.append([name, _WORDS[each.name], f"{each.tool:,}", f"{each.gateways:,}", verdict])
    return rows or [[name, NOTHING, NOTHING, NOTHING, "the tool reports no counts"]]


def _equal(outcome: OutsideOutcome) -> tuple[int, int]:
    """Number of equal counts, and of all that were compared, of requests that gateways count."""
    pairs = [each for outcome_of in outcome.runs if outcome_of.run.is_for_engines for each in outcome_of.compared]
    return sum(each.is_equal for each in pairs), len(pairs)


def _troubles(outcome: OutsideOutcome) -> list[str]:
    """Failures of all runs, each with its reason if one is known."""
    found = [f"{run.title}: it did not run{_WITHOUT_ENGINES if run.is_real else ''}." for run in outcome.missing]
    for each in outcome.runs:
        name, status = each.name, each.kept.status
        if status is None:
            found.append(f"{name}: ended after {each.run.deadline_s:.0f} s, at its deadline.")
        elif status:
            found.append(f"{name}: exit status {status}{_meaning(each)}.")
        if each.unread:
            found.append(f"{name}: its report could not be read: {_quoted(each.unread)}.")
        found += [f"{name}: {_difference(one, each)}." for one in each.unexplained]
        found += [f"{name}: {_quoted(failure, _FAILURE_MAX)}" for failure in each.reading.failures]
    return found


def _difference(pair: Compared, outcome: RunOutcome) -> str:
    told = f"{_WORDS[pair.name]} differ by {_signed(pair.difference)}, and the reason is not known"
    allowance = outcome.allowed.get(pair.name)
    if allowance is None:
        return told
    least, most = _signed(allowance.least), _signed(allowance.most)
    return f"{told}: what is known allows {least if least == most else f'{least} to {most}'}"


def _meaning(outcome: RunOutcome) -> str:
    is_told = outcome.kept.status == 1 and not outcome.unread and outcome.run.status_1
    return f": {outcome.run.status_1}" if is_told else ""


def _signed(number: int) -> str:
    return f"{number:+,}".replace("-", "−") if number else "0"


def _quoted(text: str, most: int = _REASON_MAX) -> str:
    """Text of a failure between backquotes on one line, marked where it is cut."""
    whole = shortened(text, len(text))
    return f"`{whole}`" if len(whole) <= most else f"`{whole[:most]}` (cut)"
