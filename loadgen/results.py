"""Writes and prints a run's results, simulated or live: `results.json`, `report.html`, and tables on the terminal.

It shows what the document holds, and computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadgen.figures import Figures
from loadgen.pages.runs import page_of
from loadgen.pages.verdict import verdicts

_COLUMNS = ("run", "req/s", "tok/s", "TTFT\np90", "TTFT\np50", "end\np50", "hits", "away", "failed", "open")

_STAGES = ("down", "reassigned", "renamed", "last_forward", "adopted", "returned", "home")


def write_results(folder: Path, document: Figures) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "report.html").write_text(page_of(document), encoding="utf-8")


def summary_table(title: str, rows: Iterable[tuple[str, Figures]]) -> Table:
    """Table with one row per run: its name, and the figures of all regions together."""
    table = Table(title=title, title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column(_COLUMNS[0], overflow="fold")
    for heading in _COLUMNS[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, total in rows:
        table.add_row(*_cells(name, total))
    return table


def in_short(runs: Sequence[Figures]) -> Iterator[str]:
    """One sentence per figure by which runs are compared, as on the page; empty for a single run."""
    if len(runs) > 1:
        for each in verdicts(runs):
            beside = f"; {', '.join(each.others)}" if each.others else ""
            yield f"{each.title}: {each.best}, {each.answer}{beside}."


def failovers_table(name: str, control: Figures) -> Table:
    """Table with one row per failed gateway: the failover's stages in seconds from its death. The caption counts failed
    requests by cause."""
    failed = ", ".join(f"{count} {kind}" for kind, count in control["failed_by"].items() if count) or "nothing"
    table = Table(title=f"{name}: deaths", caption=f"failed: {failed}", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("gateway", overflow="fold")
    for heading in ("at", *_STAGES):
        table.add_column(heading.replace("_", "\n"), justify="right", no_wrap=True)
    for each in control["failovers"]:
        seconds = (each[f"{stage}_s"] for stage in _STAGES)
        table.add_row(each["gateway"], f"{each['at_s']:g}", *("–" if s is None else f"{s:.1f}" for s in seconds))
    return table


def money_table(runs: Sequence[Figures]) -> Table:
    """Table of costs, with one row per run and region and one per run and tenant."""
    first = runs[0]["money"]
    title = f"{first['currency']}, by price list {first['price_list']}, for {first['days']:g} days"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("run", overflow="fold")
    table.add_column("of", overflow="fold")
    for heading in ("total", "replicas", "egress", "replica\nhours", "busy\nhours", "kg CO2"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        money = run["money"]
        sums = (f"{money[key]:.2f}" for key in ("total", "replicas", "egress"))
        table.add_row(run["name"], "all", *sums, "", "", f"{money['carbon_kg']:.1f}")
        for region, each in money["regions"].items():
            sums = (f"{value:.2f}" for value in (each["replicas"] + each["egress"], each["replicas"], each["egress"]))
            hours = (f"{each[key]:.1f}" for key in ("replica_hours", "busy_hours", "carbon_kg"))
            table.add_row("", region, *sums, *hours)
        for tenant, each in money["tenants"].items():
            table.add_row("", f"tenant {tenant}", "", f"{each['replicas']:.2f}", "", "", "", "")
    return table


def _cells(name: str, total: Figures) -> tuple[str, ...]:
    ttft, duration = total["ttft_ms"] or {}, total["duration_ms"] or {}
    hits = total["cached_share"] if total["prefix_hit_rate"] is None else total["prefix_hit_rate"]
    seconds = [f"{value / 1000:.2f}" if value is not None else "–" for value in
               (ttft.get("p90"), ttft.get("p50"), duration.get("p50"))]  # fmt: skip
    shares = [f"{value:.1%}" if value is not None else "–" for value in (hits, total["forwarded_share"])]
    rates = f"{total['requests_per_s']:.1f}", f"{total['tokens_per_s']:.0f}"
    return name, *rates, *seconds, *shares, str(total["failed"]), str(total["unfinished"])
