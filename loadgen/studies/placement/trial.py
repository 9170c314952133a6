"""`nightside results trial`: a few workloads, a few policies, a table, for quick checks while a rule is developed. It
writes no page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from loadgen.figures import Figures
from loadgen.settings import setting
from loadgen.simulator.scenario import merged
from loadgen.studies import numbers as of
from loadgen.studies.commands import options
from loadgen.studies.experiments import Changes, Experiment, all_cells, runs_of
from loadgen.studies.numbers import Measure
from loadgen.studies.placement.systems import BASELINES, OURS, STRONGEST, SYSTEMS, run_of
from loadgen.studies.placement.workloads import (
    PlacementWorkload,
    as_recorded,
    at_rate,
    changed,
    find_traces,
    with_clients,
    workloads,
)
from loadgen.studies.progress import played
from mesh.faults import ConfigError

Row = dict[str, Any]
"""One policy on one workload: names, medians of the seeds, and each seed's throughput and mean TTFT."""

_MEASURES: Mapping[str, Measure] = {
    "requests_per_s": of.THROUGHPUT,
    "ttft_mean_s": of.TTFT_MEAN,
    "ttft_p50_s": of.TTFT_P50,
    "ttft_p90_s": of.TTFT_P90,
    "whole_p50_s": of.ANSWER_P50,
    "hit_share": of.HITS,
    "prefilled_tokens": of.PREFILLED,
    "forwarded_share": of.FORWARDED,
    "busiest_to_mean": of.BUSIEST,
    "not_answered": lambda run: float(run["total"]["requests"] - run["total"]["completed"]),
}
_HEADS = ("requests/s", "TTFT mean", "p50", "p90", "whole p50", "hits", "prefilled", "away", "busiest", "lost")


@click.command()
@click.argument("names", nargs=-1, metavar="[WORKLOAD]...")
@options("traces")
@click.option("--policy", "policies", multiple=True,
              help=f"Run this system of the page, or this placement policy; repeatable. Default: {OURS} and the"
                   " strongest baselines.")  # fmt: skip
@click.option("--all", "all_systems", is_flag=True, help="Run every system of the page.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Run this many seeds.")
@click.option("--clients", type=click.IntRange(1), multiple=True, help="Set the users per region; repeatable.")
@click.option(
    "--rate", type=float, multiple=True, help="Send this many programs per second and region, open loop; repeatable."
)
@click.option(
    "--speed", type=float, multiple=True, help="Replay recorded arrivals this many times faster, open loop; repeatable."
)
@click.option("--duration", help="Send load for this long, as 30s, instead of the scenario's duration.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="Change a setting of every run but baselines, as placement.overflow=off; repeatable.")  # fmt: skip
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Show the rows of this earlier --json output as well, without running them.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON, including those of --against.")
@options("cache", "jobs")
def trial(
    *,
    names: Sequence[str],
    traces: Path | None,
    policies: Sequence[str],
    all_systems: bool,
    seeds: int,
    clients: Sequence[int],
    rate: Sequence[float],
    speed: Sequence[float],
    duration: str | None,
    settings: Sequence[str],
    against: Path | None,
    as_json: bool,
    cache_folder: Path,
    jobs: int | None,
) -> None:
    """Run a few workloads under a few policies side by side; without arguments, list their names.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    known = workloads(find_traces(traces))
    if not names:
        for name, workload in known.items():
            click.echo(f"{name:14} {workload.point.name}")
        click.echo(f"policies: {', '.join(SYSTEMS)}; or a policy of ours by its name")
        return
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no such workload: {', '.join(unknown)}; there are: {', '.join(known)}")
    earlier: list[Row] = [] if against is None else json.loads(against.read_text(encoding="utf-8"))
    chosen = policies or (tuple(SYSTEMS) if all_systems else (OURS, *STRONGEST))
    changes = dict(map(setting, settings))
    try:
        experiments = [
            _experiment(each, _runs(each, chosen, changes), seeds)
            for name in names
            for each in _at_loads(known[name], clients, rate, speed, duration)
        ]
        found = played((each.cell() for each in all_cells(experiments)), cache_folder, jobs)
    except (ConfigError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    rows = [
        _row(experiment.points[0].name, run, runs_of(found, experiment, experiment.points[0].name, run))
        for experiment in experiments
        for run in experiment.run_names
    ]
    new = {(row["workload"], row["policy"]) for row in rows}
    rows += [row for row in earlier if (row["workload"], row["policy"]) not in new]
    click.echo(json.dumps(rows, indent=1) if as_json else table_of(rows))
    for title, reason in found.failures.items():
        click.echo(f"{title}: {reason}", err=True)
    if found.failures:
        raise SystemExit(1)


def _at_loads(
    workload: PlacementWorkload,
    clients: Sequence[int],
    rates: Sequence[float],
    speeds: Sequence[float],
    duration: str | None,
) -> list[PlacementWorkload]:
    if duration is not None:
        workload = changed(workload, duration, {"duration": duration})
    loads = [with_clients(workload, each) for each in clients]
    loads += [at_rate(workload, each) for each in rates]
    loads += [as_recorded(workload, each) for each in speeds]
    return loads or [workload]


def _experiment(workload: PlacementWorkload, runs: Sequence[Changes], seeds: int) -> Experiment:
    """Experiment with the name of its point; the experiment's name is not part of any cache key."""
    numbers = tuple(range(workload.seeds_from, workload.seeds_from + seeds))
    return Experiment("trial", (workload.point,), tuple(runs), numbers)


def _runs(workload: PlacementWorkload, policies: Sequence[str], changes: Changes) -> list[Changes]:
    runs = [run_of(policy, workload.preset) for policy in policies]
    return [run if run["name"] in BASELINES else _with(run, changes) for run in runs]


def _with(run: Changes, changes: Changes) -> Changes:
    for key, value in changes.items():
        section, _, name = key.partition(".")
        run = merged(run, {section: {name: value}})
    return run


def _row(workload: str, policy: str, runs: Sequence[Figures]) -> Row:
    row: Row = {"workload": workload, "policy": policy, "seeds": sum(map(bool, runs))}
    row |= {name: of.median_of(runs, measure) for name, measure in _MEASURES.items()}
    for name in ("requests_per_s", "ttft_mean_s"):
        row[f"{name}_by_seed"] = [_MEASURES[name](run) if run else None for run in runs]
    return row


def table_of(rows: Sequence[Row]) -> str:
    """Table for each workload: the highest throughput first, and others' as a share of it."""
    said = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        ours = [row for row in rows if row["workload"] == workload]
        best = max((row["requests_per_s"] or 0.0 for row in ours), default=0.0)
        width = max(len(row["policy"]) for row in ours)
        said.append(f"{workload}\n{'':{width}}  of best  " + "".join(f"{head:>11}" for head in _HEADS))
        for row in sorted(ours, key=lambda row: -(row["requests_per_s"] or 0.0)):
            share = (row["requests_per_s"] or 0.0) / best if best else 0.0
            said.append(
                f"{row['policy']:{width}}  {share:7.3f}  " + "".join(map(_cell, _MEASURES, [row] * len(_MEASURES)))
            )
        said.append("")
    return "\n".join(said)


def _cell(name: str, row: Row) -> str:
    value = row[name]
    if value is None:
        return f"{'–':>11}"
    if name.endswith("_share"):
        return f"{100 * value:>9.1f} %"
    return f"{value:>11.0f}" if name in ("not_answered", "prefilled_tokens") else f"{value:>11.3f}"
