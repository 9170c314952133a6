"""`nightside bench decode`: the cost of a tick of the decode tier, by policy, workers, waiting requests and stage.

A compiled core and its plain sources are measured in turn in one run, in a process each. Times are CPU time, which
other load on the machine changes little. It judges none of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import log
from statistics import fmean
from typing import IO

import click

from loadgen.bench.decode.ticks import STAGES
from loadgen.bench.relay.machine import is_core_compiled

_WORKERS = (8, 16, 32, 64, 144)
_WAITING = (10, 100, 500, 1_000)
_MOST_WORKERS, _USUAL_WAITING = 144, 500
_POLICIES = ("join_shortest_queue", "br_0", "br_h")

Samples = list[dict[str, float]]


@dataclass(frozen=True)
class DecodeCell:
    policy: str
    workers: int
    waiting: int
    free_slots: int = 0
    """Slots that are free at each tick; 0 leaves those freed since the previous tick, one to eight."""
    ticks: int = 200

    def name(self) -> str:
        many = f", {self.free_slots} free" if self.free_slots else ""
        return f"{self.policy}, {self.workers} workers, {self.waiting} wait{many}"


def cells(ticks: int) -> list[DecodeCell]:
    """Cells of the measurement: growing workers at the usual backlog, a growing backlog at the most workers, and one
    case with many free slots that are filled one by one."""
    found = []
    for policy in _POLICIES:
        found += [DecodeCell(policy, workers, _USUAL_WAITING, ticks=ticks) for workers in _WORKERS]
        found += [
            DecodeCell(policy, _MOST_WORKERS, waiting, ticks=ticks) for waiting in _WAITING if waiting != _USUAL_WAITING
        ]
        found.append(DecodeCell(policy, _MOST_WORKERS, _USUAL_WAITING, 3 * _MOST_WORKERS, ticks))
    return found


class DecodeChild:
    """One core in a process of its own."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        command = [sys.executable, "-m", "loadgen.bench.decode.child", kind]
        process = stack.enter_context(
            subprocess.Popen(  # noqa: S603 - this Python, and this module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._asks: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        stack.callback(self._asks.close)

    def ask(self, cell: DecodeCell) -> Samples:
        self._asks.write(json.dumps(asdict(cell)) + "\n")
        self._asks.flush()
        line = self._answers.readline()
        if not line:
            raise click.ClickException(f"the core that measures {cell.name()} has ended")
        samples: Samples = json.loads(line)
        return samples


def measure(kinds: Iterable[str], chosen: Sequence[DecodeCell], rounds: int) -> dict[str, dict[DecodeCell, Samples]]:
    """Times of every tick, by core and cell, measured in rounds of each core in turn."""
    with ExitStack() as stack:
        children = {kind: DecodeChild(kind, stack) for kind in kinds}
        taken: dict[str, dict[DecodeCell, Samples]] = {kind: {cell: [] for cell in chosen} for kind in children}
        for cell in chosen:
            for _ in range(rounds):
                for kind, child in children.items():
                    taken[kind][cell] += child.ask(cell)
        return taken


def percentile(numbers: Iterable[float], share: float) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def exponent(points: Mapping[int, float]) -> float:
    """Exponent of the best-fitting power law: the slope in logarithms, by least squares."""
    xs, ys = [log(x) for x in points], [log(y) for y in points.values()]
    x_mean, y_mean = fmean(xs), fmean(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def figures_of(taken: Mapping[DecodeCell, Samples]) -> dict[str, dict[str, float]]:
    """Milliseconds of a tick per cell, at the median and at p99, and the median of each stage."""
    found: dict[str, dict[str, float]] = {}
    for cell, samples in taken.items():
        ticks = [each["tick"] for each in samples]
        found[cell.name()] = {
            "p50_ms": percentile(ticks, 0.5),
            "p99_ms": percentile(ticks, 0.99),
            "admitted": fmean(each["admitted"] for each in samples),
        } | {
            f"{stage}_p50_ms": percentile([each[stage] for each in samples], 0.5)
            for stage in STAGES
            if stage != "tick" and stage in samples[0]
        }
    return found


def growth_of(taken: Mapping[DecodeCell, Samples]) -> dict[str, float]:
    """Exponents of the median's growth with the number of workers and of waiting requests."""
    median = {cell: percentile([each["tick"] for each in samples], 0.5) for cell, samples in taken.items()}
    few = {cell: ms for cell, ms in median.items() if not cell.free_slots}
    found = {}
    for policy in dict.fromkeys(cell.policy for cell in few):
        by_workers = {c.workers: ms for c, ms in few.items() if c.policy == policy and c.waiting == _USUAL_WAITING}
        by_waiting = {c.waiting: ms for c, ms in few.items() if c.policy == policy and c.workers == _MOST_WORKERS}
        if len(by_workers) > 1:
            found[f"{policy}_exponent_workers"] = exponent(by_workers)
        if len(by_waiting) > 1:
            found[f"{policy}_exponent_waiting"] = exponent(by_waiting)
    return found


@click.command()
@click.option(
    "--ticks", type=click.IntRange(min=4), default=100, show_default=True, help="Set the ticks of each core per round."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Set the rounds of each core for each cell.",
)
@click.option("--only", type=click.Choice(_POLICIES), multiple=True, help="Measure only this policy; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def decode(ticks: int, rounds: int, only: tuple[str, ...], as_json: bool) -> None:
    """Measure the cost of a decode tier's tick by stage, on the plain and the compiled core in turn.

    Build the compiled core first (`make compiled`), and run this in build/compiled; elsewhere there is only the plain
    one. CPU time in milliseconds.
    """
    kinds = ["plain", "compiled"] if is_core_compiled() else ["plain"]
    chosen = [cell for cell in cells(ticks) if not only or cell.policy in only]
    taken = measure(kinds, chosen, rounds)
    if as_json:
        shown = {kind: figures_of(each) | {"growth": growth_of(each)} for kind, each in taken.items()}
        click.echo(json.dumps(shown, indent=2))
        return
    for kind, each in taken.items():
        click.echo(f"{kind} core")
        for name, figures in figures_of(each).items():
            numbers = ", ".join(f"{figure.removesuffix('_ms')} {value:.3g}" for figure, value in figures.items())
            click.echo(f"  {name}: {numbers}")
        for name, value in growth_of(each).items():
            click.echo(f"  {name} {value:.2f}")
