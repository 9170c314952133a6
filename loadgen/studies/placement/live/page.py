"""Page of the live comparison, made from its document alone: every system beside Nightside, and the machine's CPU use.

Every sentence is derived from figures. It must never leave out a failed request, nor a run that could not be played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loadgen.demo.reading import BUSY_MACHINE_SHARE
from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING
from loadgen.studies import numbers as of
from loadgen.studies.numbers import Measure, Middle, measured, ratio
from loadgen.studies.placement.judgement import THROUGHPUT_MIN, WAIT_MAX
from loadgen.studies.placement.live.systems import NIGHTSIDE
from loadgen.studies.rendering import render, shortened

_FAILURES_MAX = 8


def _cpu(key: str) -> Measure:
    return lambda run: None if run["machine_cpu"] is None else run["machine_cpu"][key]


_NUMBERS: tuple[tuple[str, Measure, int], ...] = (
    ("requests/s", of.THROUGHPUT, 2),
    ("tokens/s", of.TOKENS, 0),
    ("TTFT mean, s", of.TTFT_MEAN, 2),
    ("TTFT p50, s", of.TTFT_P50, 2),
    ("TTFT p90, s", of.TTFT_P90, 2),
    ("whole answer p50, s", of.ANSWER_P50, 2),
)
"""Measures shown as numbers, with their decimal places."""
_SHARES: tuple[tuple[str, Measure], ...] = (
    ("hit rate", of.total("cached_share")),
    ("forwarded", of.FORWARDED),
    ("CPU, its own", _cpu("own_share")),
    ("CPU, all that ran", _cpu("mean_share")),
)
_COUNTS = ("requests", "failed", "unfinished")


def page_of(document: Figures) -> str:
    """The page as Markdown."""
    return render(
        "placement/live/page.j2", document=document, case_table=case_table, compared=_compared, runs=_runs,
        of=of, ratio=ratio, nightside=NIGHTSIDE,
        failures=_failures, machine=_machine, throughput_min=THROUGHPUT_MIN, wait_max=WAIT_MAX,
    )  # fmt: skip


def case_table(document: Figures, case: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a case's table, with a column for each system. Medians, and their spread."""
    found = {each["name"]: _runs(document, case, each["name"]) for each in document["systems"]}
    played = {name: runs for name, runs in found.items() if any(runs)}
    runs = list(played.values())
    rows = [
        [title, *(of.number(measured(each, measure), digits) for each in runs)] for title, measure, digits in _NUMBERS
    ]
    rows += [[title, *(of.percent(measured(each, measure), 0) for each in runs)] for title, measure in _SHARES]
    rows += [[key, *(f"{sum(run['total'][key] for run in each if run):,}" for each in runs)] for key in _COUNTS]
    return ["", *played], rows if played else []


def _runs(document: Figures, case: str, system: str) -> list[Figures]:
    """Figures of each round; empty for a round that could not be played."""
    found = {run["round"]: run for run in document["runs"] if run["case"] == case and run["system"] == system}
    return [found.get(number + 1, {}) for number in range(document["rounds"])]


def _compared(document: Figures, case: str) -> Iterator[list[str]]:
    ours = _runs(document, case, NIGHTSIDE)
    for system in document["systems"]:
        theirs = _runs(document, case, system["name"])
        if system["name"] == NIGHTSIDE or not any(ours) or not any(theirs):
            continue
        throughput, wait = ratio(ours, theirs, of.THROUGHPUT), ratio(ours, theirs, of.TTFT_MEAN)
        others = [ratio(ours, theirs, measure) for measure in (of.TTFT_P50, of.TTFT_P90)]
        told = [of.spread_times(each) for each in (throughput, wait, *others)]
        yield [system["name"], *told, _verdict(throughput, wait)]


def _verdict(throughput: Middle | None, wait: Middle | None) -> str:
    if throughput is None or wait is None:
        return NOTHING
    return "met" if throughput.median >= THROUGHPUT_MIN and wait.median <= WAIT_MAX else "**not met**"


def _failures(document: Figures, case: str) -> list[str]:
    said: Counter[tuple[str, str]] = Counter()
    for run in document["runs"]:
        if run["case"] == case:
            for detail, count in run["total"]["failures"].items():
                said[run["system"], shortened(detail)] += count
    return [f"{system}: {count} × `{detail}`" for (system, detail), count in said.most_common(_FAILURES_MAX)]


def _machine(document: Figures) -> str:
    told = [run["machine_cpu"] for run in document["runs"] if run["machine_cpu"] is not None]
    lags = [run["lag_ms"]["p99"] for run in document["runs"] if run["lag_ms"] is not None]
    text = ""
    if told:
        own, busiest = max(each["own_share"] for each in told), max(each["mean_share"] for each in told)
        text += f"\nThe processes of a run used {own:.0%} of all cores at most. {_busy(own, busiest)}\n"
    if lags:
        text += f"Requests left {max(lags):.0f} ms (p99) after they were due in the worst run, which is counted.\n"
    return text


def _busy(own: float, busiest: float) -> str:
    limit = f"{BUSY_MACHINE_SHARE:.0%}"
    if own > BUSY_MACHINE_SHARE:
        return f"**Above {limit} a run measures the machine too: these figures are not only of who is compared.**"
    if busiest > BUSY_MACHINE_SHARE:
        return (
            f"With all that ran beside, up to {busiest:.0%} was busy: **something else had the machine meanwhile**, and"
            " short times hold waits for a core, for all alike."
        )
    return f"With all that ran beside, {busiest:.0%} was busy at most: no system waited for a core for long."
