"""Sections of measurements that other commands left beside the page; missing ones are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, bullets, table
from loadgen.studies.skywalker.reader import Section

SLOTS = ("agreement", "scale")
"""Names of files with results, without `.json`."""


def agreement(others: Mapping[str, Figures | None]) -> Section:
    """Section of the results of `nightside agreement`."""
    found = others.get("agreement")
    if found is None:
        return _missing("Live and simulated", "agreement", "make agreement")
    metrics: Sequence[Figures] = found["metrics"]
    agreeing = sum(each["agrees"] is True for each in metrics)
    compared = sum(each["agrees"] is not None for each in metrics)
    rows = [
        (each["metric"], _shown(each["simulated_median"]), _shown(each["live_median"]), _gap(each["gap"]))
        for each in metrics
    ]
    said = (
        f"{found['about']} {found['quiet_runs']} of {found['live_runs']} live runs had the machine for themselves,"
        f" and only they count; {agreeing} of {compared} figures are within {found['gap_max']:.0%}. {_ran_with(found)}"
    )
    return Section(
        f"## Live and simulated\n\n{said}\n\n{table(('figure', 'simulated', 'live', 'simulated over live'), rows)}"
    )


def _ran_with(found: Figures) -> str:
    if "ran_with" not in found:
        return "With which settings both ran was not written down."
    return f"Both ran with {found['ran_with']}."


def scale(others: Mapping[str, Figures | None]) -> Section:
    """Section of the results of `nightside bench scale`."""
    found = others.get("scale")
    if found is None:
        return _missing("Speed and scale", "scale", "nightside bench scale -o docs/results/scale.json")
    parts = ["## Speed and scale\n", bullets(found.get("text", ()))]
    if found.get("rows"):
        parts.append(table(found["head"], found["rows"]))
    return Section("\n".join(parts))


def _missing(title: str, name: str, command: str) -> Section:
    hint = f"; `{command}` writes it" if command else ""
    return Section(f"## {title}\n\nNot measured here: there is no `{name}.json` beside this page{hint}.\n")


def _shown(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def _gap(gap: float | None) -> str:
    return NOTHING if gap is None else f"{gap:+.1%}"
