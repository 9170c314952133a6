"""Experiments that judge the default placement: every workload, every load, failures, and each constant.

It names experiments; their results are judged and shown elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.simulator.scenario import merged
from loadgen.studies.experiments import Changes, Experiment
from loadgen.studies.placement.cases import PlacementCase, cases
from loadgen.studies.placement.constants import CONSTANTS, Constant
from loadgen.studies.placement.held_out import held_out
from loadgen.studies.placement.systems import BEFORE, OURS, STRONGEST, SYSTEMS, run_of
from loadgen.studies.placement.workloads import (
    REGIONS,
    PlacementWorkload,
    as_recorded,
    at_rate,
    changed,
    find_traces,
    with_clients,
    workloads,
)
from loadgen.studies.skywalker.plan import Traces

ON_EVERY_LOAD = (OURS, BEFORE, *STRONGEST)
"""Systems played where not all of them are."""
SEEDS, SEEDS_FULL = 3, 5
CLIENTS = (15, 22, 30, 40, 48)
"""Numbers of clients in each region, on two replicas."""
SPEEDS = (1, 2, 3, 4, 5)
"""Speeds of recorded arrivals."""
SENSITIVE = ("agentic", "agentic-long", "mooncake", "tot-8", "skewed", "one-prompt")
"""The workloads on which constants are tried: those on which rules differ most."""
_TWO_EACH: Changes = {f"regions.{region}.replicas": 2 for region in REGIONS}


@dataclass(frozen=True, slots=True)
class Series:
    """One workload, at one load or at several: a row of a table, or a curve for each system."""

    title: str
    experiment: Experiment
    """Experiment with a point for each load, in their order."""
    axis: str = ""
    """Quantity that varies between loads; empty for a single load."""
    loads: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Spike:
    """One minute of a much higher load, and the time after it compared with the same time without it."""

    title: str
    experiment: Experiment
    """Two points: without the spike, and with it; in both, only the time after it counts."""


@dataclass(frozen=True, slots=True)
class PlacementEvaluation:
    traces: Traces
    seeds: tuple[int, ...]
    """Seeds of sections that do not have their own."""
    workloads: tuple[Series, ...]
    sweeps: tuple[Series, ...]
    cases: tuple[Series, ...]
    spikes: tuple[Spike, ...]
    constants: tuple[Constant, ...]
    sensitivity: Mapping[str, Sequence[Experiment]]
    """Experiments by constant, one for each workload; their runs are named by the values."""
    held_out: tuple[Series, ...]
    """Empty unless `look` is given."""

    @property
    def series(self) -> tuple[Series, ...]:
        """Series that the default is judged by."""
        return (*self.workloads, *self.sweeps, *self.cases, *self.held_out)

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        tried = (each for several in self.sensitivity.values() for each in several)
        spikes = (spike.experiment for spike in self.spikes)
        return (*(each.experiment for each in self.series), *spikes, *tried)


def evaluation(
    folder: Path | None, *, full: bool = False, look: bool = False, constants: Sequence[Constant] = CONSTANTS
) -> PlacementEvaluation:
    """All experiments. `full`: five seeds everywhere; `look`: held-out workloads are played too."""
    traces = find_traces(folder)
    known = workloads(traces)
    count = SEEDS_FULL if full else SEEDS
    unseen = held_out(folder) if look else {}
    return PlacementEvaluation(
        traces,
        tuple(range(1, count + 1)),
        tuple(_single("workload", name, each, tuple(SYSTEMS), SEEDS_FULL) for name, each in known.items()),
        tuple(_sweeps(known, count)),
        tuple(_case(each, count) for each in cases(known)),
        tuple(_spikes(known, count)),
        tuple(constants),
        {each.key: _tried(each, known, count) for each in constants},
        tuple(_single("held out", name, each, tuple(SYSTEMS), SEEDS_FULL) for name, each in unseen.items()),
    )


def _experiment(name: str, points: Sequence[PlacementWorkload], systems: Sequence[str], seeds: int) -> Experiment:
    first = points[0]
    runs = tuple(run_of(system, first.preset) for system in systems)
    numbers = tuple(range(first.seeds_from, first.seeds_from + seeds))
    return Experiment(name, tuple(each.point for each in points), runs, numbers)


def _single(part: str, name: str, workload: PlacementWorkload, systems: Sequence[str], seeds: int) -> Series:
    return Series(workload.point.name, _experiment(f"{part}, {name}", [workload], systems, seeds))


def _case(case: PlacementCase, seeds: int) -> Series:
    experiment = _experiment(f"case, {case.name}", case.workloads, ON_EVERY_LOAD, seeds)
    return Series(case.title, experiment, case.axis, case.values, case.note)


# Load sweeps


def _sweeps(known: Mapping[str, PlacementWorkload], seeds: int) -> list[Series]:
    """Load sweeps, closed loop and open, of the workloads whose files are present."""
    small = {name: changed(each, "2/2/2", _TWO_EACH) for name, each in known.items()}
    large = [name for name in ("agentic", "agentic-long", "mooncake", "reasoning") if name in known]
    found = [_by_clients(name, known[name], CLIENTS, seeds) for name in large]
    found += [_by_clients(name, small[name], (4, 8, *CLIENTS), seeds) for name in ("tot", "one-prompt", "bursts")]
    if "mooncake" in known:
        points = [as_recorded(known["mooncake"], speed) for speed in SPEEDS]
        found.append(_curve("mooncake, open", points, "recorded arrivals, times", SPEEDS, seeds))
    for name, rates in (
        ("reasoning", (1.0, 1.5, 2.0, 2.5, 3.0)),
        ("one-prompt", (0.25, 0.5, 0.75, 1.0, 1.5)),
        ("bursts", (0.02, 0.05, 0.1, 0.15, 0.2)),
    ):
        points = [at_rate(small[name], rate) for rate in rates]
        found.append(_curve(f"{name}, open", points, "programs/s a region", rates, seeds))
    return found


def _by_clients(name: str, workload: PlacementWorkload, clients: Sequence[int], seeds: int) -> Series:
    return _curve(name, [with_clients(workload, each) for each in clients], "clients a region", clients, seeds)


def _curve(name: str, points: Sequence[PlacementWorkload], axis: str, loads: Sequence[float], seeds: int) -> Series:
    title = points[0].point.name.rpartition("; ")[0] + (", open loop" if name.endswith("open") else "")
    return Series(title, _experiment(f"sweep, {name}", points, ON_EVERY_LOAD, seeds), axis, tuple(loads))


# Spikes


_SPIKE_S = (60, 120)
_AFTER: Changes = {"duration": "240s", "warm_up": "150s"}
"""Window from half a minute after the end of the spike to the end."""


def _spikes(known: Mapping[str, PlacementWorkload], seeds: int) -> list[Spike]:
    """Spikes: on top of each workload's load, a minute in which every region sends bursts about documents."""
    calm = [
        with_clients(known[name], clients) for name, clients in (("agentic", 22), ("agentic-long", 15)) if name in known
    ]
    if "mooncake" in known:
        calm.append(as_recorded(known["mooncake"], 2.0))
    calm += [with_clients(changed(known[name], "2/2/2", _TWO_EACH), 15) for name in ("tot", "one-prompt")]
    return [_spike(changed(each, "after a minute", _AFTER), seeds) for each in calm]


def _spike(calm: PlacementWorkload, seeds: int) -> Spike:
    begins, ends = _SPIKE_S
    curve = [["0s", 0.0], [f"{begins - 1}s", 0.0], [f"{begins}s", 1.0], [f"{ends}s", 1.0], [f"{ends + 1}s", 0.0]]
    words = 6000 if "h100" in calm.preset else 1000
    spiked = changed(
        calm,
        "of bursts",
        {
            "workloads.spike": {"bursts": {"requests": 30, "document_words": words}},
            "clients": [
                *calm.clients(),
                *({"region": region, "workload": "spike", "arrivals": {"curve": curve}} for region in REGIONS),
            ],
        },
    )
    title = calm.point.name.rpartition("; ")[0]
    return Spike(title, _experiment(f"spike, {title}", [calm, spiked], ON_EVERY_LOAD, seeds))


# Sensitivity


def _tried(constant: Constant, known: Mapping[str, PlacementWorkload], seeds: int) -> list[Experiment]:
    """Experiments with the default rule and only this constant changed."""
    ours = run_of(OURS, "")
    runs = tuple(
        merged(ours, {"name": value, "placement": {constant.key: constant.given(value)}}) for value in constant.values
    )
    return [
        Experiment(
            f"sensitivity, {constant.key}, {name}",
            (workload.point,),
            runs,
            tuple(range(workload.seeds_from, workload.seeds_from + seeds)),
        )
        for name, workload in known.items()
        if name in SENSITIVE
    ]
