"""Compares the simulator with reality: one scenario, simulated and played live several times each, figure by figure.

The simulator's one measured input, the cost of an HTTP hop, is measured on an idle mesh with requests that are not the
scenario's; nothing is fitted to the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import aiohttp
from msgspec import to_builtins
from rich.console import Console

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.demo.mesh import Mesh
from loadgen.engine.model import EngineConfig, FirstTokenMade
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.sglang_model import engine_model
from loadgen.figures import Figures
from loadgen.live_client import EndpointDialect, PartialAnswer, exchange
from loadgen.live_runner import LiveRunner
from loadgen.load.local_mesh import local_mesh, urls_of
from loadgen.load.outcome import LiveRun, live_figures
from loadgen.load.plan import Keys, LiveLimits, plan_of
from loadgen.load.screen import Screen
from loadgen.machine import CpuSampler
from loadgen.simulator.results import figures_of
from loadgen.simulator.scenario import RunSection, Scenario, load_scenario
from loadgen.simulator.world import World
from loadgen.vocabulary import ApiKind
from loadgen.workload import Message
from mesh.clock import Clock

BUSY_SHARE = 0.6
"""CPU share of the machine above which a live run is marked as busy and excluded, since it measures the machine too."""
GAP_MAX = 0.10
_SECOND_NS = 1_000_000_000
_HOPS = 2
"""Hops of a request: from the client to a gateway, and from there to an engine."""
_PROBES = 24
_PROBE_PAUSE_S = 0.05
_IN_FLIGHT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Metric:
    """Figure that simulated and live runs both have."""

    name: str
    of: Callable[[Figures], float | None]


METRICS = (
    Metric("tokens_per_s", lambda run: run["total"]["tokens_per_s"]),
    Metric("requests_per_s", lambda run: run["total"]["requests_per_s"]),
    Metric("ttft_p50_ms", lambda run: (run["total"]["ttft_ms"] or {}).get("p50")),
    Metric("ttft_p90_ms", lambda run: (run["total"]["ttft_ms"] or {}).get("p90")),
    Metric("forwarded_share", lambda run: run["total"]["forwarded_share"]),
)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time to first token on an idle mesh, of requests that share no prefix."""

    modelled_ns: int
    """Time of the engine model alone, for the same prompts."""
    engine_ns: int
    """Median measured directly at an engine."""
    gateway_deciles_ns: tuple[int, ...]
    """Deciles measured through the gateway in front of the engine, from the first to the ninth."""

    @property
    def hops_ns(self) -> list[int]:
        """Time added by one hop, for each measured decile: the simulator's `network.in_region`."""
        return [max(1, (each_ns - self.modelled_ns) // _HOPS) for each_ns in self.gateway_deciles_ns]


class Agreement:
    """The whole comparison. `document` returns the measurements so far, however the comparison ended."""

    def __init__(self, path: Path, changes: Mapping[str, object], folder: Path, console: Console) -> None:
        """Load the scenario. Raises ConfigError."""
        self._path = path
        self._changes = dict(changes)
        self._scenario = load_scenario(path, changes)
        self._run = self._scenario.runs[0]
        self._folder = folder
        self._console = console
        self._overhead: Overhead | None = None
        self._simulated: list[Figures] = []
        self._live: list[Figures] = []

    async def compare(self, live_runs: int) -> None:
        """Play the live runs, then simulate: simulating earlier would slow the live runs down."""
        for number in range(live_runs):
            await self._play_live(number, live_runs)
            if not self._simulated and self._overhead is not None:
                self._simulated = simulated(self._path, self._changes, self._run, self._overhead)

    async def _play_live(self, number: int, live_runs: int) -> None:
        folder = self._folder / f"live-{number}"
        async with asyncio.TaskGroup() as tasks, local_mesh(self._scenario, self._run, folder, tasks) as mesh:
            if self._overhead is None:
                self._overhead = await measured_overhead(self._scenario, mesh)
            figures = await self._send(mesh, f"live {number + 1} of {live_runs}", tasks)
            self._live.append(figures)

    async def _send(self, mesh: Mesh, name: str, tasks: asyncio.TaskGroup) -> Figures:
        scenario = self._scenario
        dialect = EndpointDialect(ModelName(scenario.model))
        runner = LiveRunner(
            plan_of(scenario, urls_of(mesh), Keys(), dialect, LiveLimits(_IN_FLIGHT_MAX)), clock=Clock()
        )
        cpu = CpuSampler((os.getpid(), *mesh.pids))
        background = [tasks.create_task(cpu.run()), tasks.create_task(Screen(self._console, name, runner, cpu).run())]
        try:
            await runner.run()
        finally:
            for task in background:
                task.cancel()
        run = LiveRun(name, runner.records, runner.samples, scenario.duration, machine=cpu.use())
        return live_figures(scenario, run)

    def document(self) -> Figures:
        return agreement_document(self._scenario, self._overhead, self._simulated, self._live)


def simulated(path: Path, changes: Mapping[str, object], run: RunSection, overhead: Overhead) -> list[Figures]:
    """Simulate the scenario once for each measured decile of a hop's cost: as in live runs, tiny differences in time
    change the order of requests, and a single simulation would hide how far the figures spread."""
    variants = [
        dict(changes) | {"network.in_region": f"{max(1, hop_ns // 1000)}us"}
        for hop_ns in dict.fromkeys(overhead.hops_ns)
    ]
    scenarios = [load_scenario(path, variant) for variant in variants]
    return [figures_of(scenario, World(scenario, run).play()) for scenario in scenarios]


# Cost of a hop


async def measured_overhead(scenario: Scenario, mesh: Mesh) -> Overhead:
    """Measure one request at a time, directly at an engine and through its gateway in turn. Each prompt differs from
    the first word on, so that no prefix cache has a hit."""
    region = next(iter(mesh.gateways))
    gateway, engine = mesh.gateways[region], mesh.engines[region][0]
    dialect = EndpointDialect(ModelName(scenario.model))
    prompt_tokens: list[int] = []
    times: dict[str, list[int]] = {gateway: [], engine: []}
    async with aiohttp.ClientSession() as session:
        for number in range(_PROBES):
            for url, measured in times.items():
                answer, first_ns = await _probe(session, url, dialect, f"{number:04} to {url}")
                measured.append(first_ns)
                prompt_tokens.append(answer.usage.prompt_tokens or 0)
                await asyncio.sleep(_PROBE_PAUSE_S)
    config = next(engine for owned in scenario.fleet().values() for _, engine in owned)
    modelled_ns = first_token_ns(config, round(median(prompt_tokens)))
    return Overhead(modelled_ns, round(median(times[engine])), tuple(map(round, quantiles(times[gateway], n=10))))


async def _probe(
    session: aiohttp.ClientSession, url: str, dialect: EndpointDialect, words: str
) -> tuple[PartialAnswer, int]:
    answer, clock = PartialAnswer(), Clock()
    heard: list[int] = []
    sent_ns = clock.now_ns()
    body = dialect.body([Message(role="user", content=f"{words:<64}")], 2)
    url += ApiKind.CHAT.path
    await exchange(
        session, url, headers={}, body=body, answer=answer, on_text=lambda: heard.append(clock.now_ns() - sent_ns)
    )
    return answer, heard[0]


def first_token_ns(config: EngineConfig, prompt_tokens: int) -> int:
    """Nanoseconds that the model of an idle engine takes to the first token."""
    model = engine_model(config)
    model.submit(EngineRequest("probe", prompt_tokens, 2), 0)
    while (at_ns := model.next_change_ns()) is not None:
        if any(isinstance(output, FirstTokenMade) for output in model.advance(at_ns)):
            return at_ns
    raise AssertionError("the model gave no token")


# Comparison figure by figure


def agreement_document(
    scenario: Scenario, overhead: Overhead | None, simulated: Sequence[Figures], live: Sequence[Figures]
) -> Figures:
    """Results of the comparison, JSON-able. The figures are those of live runs on a machine that was not busy, since
    the others measured the machine too. Without such a run there is no comparison."""
    quiet = [run for run in live if not is_busy(run)]
    settings = _settings(scenario.runs[0])
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "seed": scenario.seed,
        "load_s": (scenario.duration - scenario.warm_up) / _SECOND_NS,
        "overhead_ms": None if overhead is None else _overhead_document(overhead),
        "live_runs": len(live),
        "quiet_runs": len(quiet),
        "gap_max": GAP_MAX,
        "settings": settings,
        "ran_with": _in_words(settings),
        "metrics": _compared(simulated, quiet),
        "regions": {
            region: _compared(
                [_of_region(run, region) for run in simulated], [_of_region(run, region) for run in quiet]
            )
            for region in scenario.regions
        },
        "machine": [_machine(run) for run in live],
        "simulated": [_short(run) for run in simulated],
        "live": [_short(run) for run in live],
    }


def _settings(run: RunSection) -> Figures:
    """Placement and pushing settings of every run, live and simulated, recorded because defaults change over time."""
    config = run.as_config()
    return {"placement": to_builtins(config.placement), "pushing": to_builtins(config.pushing)}


def _in_words(settings: Figures) -> str:
    """Settings, as text, whose defaults differ from the paper's."""
    placement, pushing = settings["placement"], settings["pushing"]
    credit = "no in-band credit" if pushing["in_band_credit"] is None else f"in_band_credit {pushing['in_band_credit']}"
    return (
        f"policy {placement['policy']}, explore_rule {placement['explore_rule']}, remote_choice"
        f" {placement['remote_choice']}, pushing {pushing['mode']} and {credit}"
    )


def is_busy(run: Figures) -> bool:
    """True if the machine was busy, or if its CPU use is unknown."""
    return run["machine_cpu"] is None or run["machine_cpu"]["mean_share"] > BUSY_SHARE


def _overhead_document(overhead: Overhead) -> Figures:
    return {
        "modelled_first_token": round(overhead.modelled_ns / 1e6, 3),
        "engine_first_token": round(overhead.engine_ns / 1e6, 3),
        "gateway_first_token": round(median(overhead.gateway_deciles_ns) / 1e6, 3),
        "hop": round(median(overhead.hops_ns) / 1e6, 3),
        "hop_deciles": [round(hop_ns / 1e6, 3) for hop_ns in overhead.hops_ns],
    }


def _compared(simulated: Sequence[Figures], live: Sequence[Figures]) -> list[Figures]:
    return [_row(metric, simulated, live) for metric in METRICS]


def _row(metric: Metric, simulated: Sequence[Figures], live: Sequence[Figures]) -> Figures:
    told = [value for run in simulated if (value := metric.of(run)) is not None]
    measured = [value for run in live if (value := metric.of(run)) is not None]
    gap = gap_between(median(told), median(measured)) if told and measured else None
    return {
        "metric": metric.name,
        "simulated_median": median(told) if told else None,
        "simulated_min": min(told, default=None),
        "simulated_max": max(told, default=None),
        "live_median": median(measured) if measured else None,
        "live_min": min(measured, default=None),
        "live_max": max(measured, default=None),
        "gap": gap,
        "agrees": None if gap is None else abs(gap) <= GAP_MAX,
    }


def gap_between(simulated: float, live: float) -> float | None:
    """Relative difference of the simulated from the live value; None where the live value is zero."""
    if simulated == live:
        return 0.0
    return round(simulated / live - 1, 4) if live else None


def _of_region(run: Figures, region: RegionName | str) -> Figures:
    return {"total": run["regions"][region]}


def _machine(run: Figures) -> Figures:
    return (run["machine_cpu"] or {}) | {"busy": is_busy(run)}


def _short(run: Figures) -> Figures:
    """Figures without the series that are only drawn."""
    return {key: value for key, value in run.items() if key not in ("series", "placements")}
