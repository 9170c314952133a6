"""Builds a live run's figures in the form of a simulated run's; values that cannot be observed from outside are null.

It only counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core.vocabulary import RegionName
from loadgen.figures import (
    Figures,
    Window,
    asked_in,
    distribution,
    figures_on,
    first_tokens_over_time,
    flows,
)
from loadgen.live_runner import TallySample
from loadgen.report import MachineUse, RequestReport
from loadgen.simulator.origins import origins_of
from loadgen.simulator.scenario import Scenario
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000
_UNSEEN = dict.fromkeys(
    (
        "prefilled_tokens_per_request",
        "outstanding_mean",
        "outstanding_max_to_mean",
        "outstanding_max_to_min",
        "outstanding_p90_minus_p10",
        "queue_mean",
        "queue_max",
        "replicas_needed",
    )
)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Results of one live run."""

    name: str
    records: Sequence[RequestReport]
    samples: Mapping[RegionName, Sequence[TallySample]]
    load_ns: int
    """Time for which load was sent, up to the end of the load or the interruption."""
    is_partial: bool = False
    machine: MachineUse | None = None
    """CPU use of the sending machine."""


def live_figures(scenario: Scenario, run: LiveRun) -> Figures:
    window = _window(scenario, run)
    asked = asked_in(run.records, window)
    return {
        "name": run.name,
        "system": "live",
        "digest": None,
        "seed": scenario.seed,
        "load_s": round((window[1] - window[0]) / _SECOND_NS, 3),
        "measured_s": [round(at_ns / _SECOND_NS, 3) for at_ns in window],
        "simulated_s": None,
        "core_events": None,
        "all_requests": len(run.records),
        "total": figures_on(run.records, window) | {"prefix_hit_rate": None} | _UNSEEN,
        "regions": {
            region: figures_on([each for each in run.records if each.client_region == region], window)
            | {"prefix_hit_rate": None}
            for region in run.samples
        },
        "flows": flows(asked),
        "placements": [],
        "refusals": {},
        "ends": dict(sorted(Counter(map(_how, run.records)).items())),
        "series": {region: _series(region, run, window) for region in run.samples},
        "partial": run.is_partial,
        "lag_ms": distribution(each.lag_ns for each in asked),
        "machine_cpu": None if run.machine is None else run.machine.as_document(),
    }


def live_document(scenario: Scenario, runs: Sequence[Figures]) -> Figures:
    """Contents of `results.json`."""
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "digest": None,
        "regions": list(dict.fromkeys(clients.region for clients in scenario.clients)),
        "replicas": None,
        "faults": [],
        "origins": origins_of(scenario),
        "runs": list(runs),
    }


def _window(scenario: Scenario, run: LiveRun) -> Window:
    """Measured interval; the whole run if it was stopped during its warm-up."""
    start_ns = scenario.warm_up if run.load_ns > scenario.warm_up else 0
    return start_ns, max(run.load_ns, start_ns + 1)


def _how(record: RequestReport) -> str:
    return record.detail if record.end is RequestEnd.FAILED else str(record.end)


def _series(region: RegionName, run: LiveRun, window: Window) -> Figures:
    samples = run.samples[region]
    return {
        "at_s": [round(sample.at_ns / _SECOND_NS, 3) for sample in samples],
        "waiting": [sample.waiting for sample in samples],
        "streaming": [sample.streaming for sample in samples],
    } | first_tokens_over_time(region, run.records, window)
