"""Command `nightside sim`: plays a scenario in virtual time with the same cores as in production, and reports.

It only reads, plays and writes; every figure comes from `results`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import yaml
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.figures import Figures
from loadgen.pages.runs import sweep_page
from loadgen.results import failovers_table, in_short, money_table, summary_table, write_results
from loadgen.settings import pair, scalar, setting
from loadgen.shipped import SCENARIO
from loadgen.simulator.chaos import ChaosKind, ChaosRun, Finding, chaos_document, run_chaos
from loadgen.simulator.checkers import Broken
from loadgen.simulator.ray_cluster import connected
from loadgen.simulator.results import document_of
from loadgen.simulator.scenario import Scenario, check_playable, load_scenario
from loadgen.simulator.sweep import SeedSpread, SweepCell, all_done, all_done_on, grid, play
from loadgen.simulator.world import World
from loadgen.wide_console import wide_console
from mesh.faults import ConfigError

EXIT_FOUND = 1
_CELLS_MAX = 4096
_JOBS_PER_CORE = 2
_CHAOS_RUNS = 100
_PRICES_KEY = "prices.file"
_APART = {
    "--chaos": ("--run", "--set", "--sweep", "--check", "--prices"),
    "--trace": ("--out", "--json", "--sweep", "--jobs", "--ray", "--first"),
    "--ray": ("--jobs",),
    "SCENARIO": ("--runs", "--first"),
}
"""Options without effect beside another one: chaos draws and checks its own worlds; a trace is the record of one run,
in this process; a cluster determines the number of jobs itself."""


@click.command()
@click.argument("scenario", required=False, type=SCENARIO)
@click.option(
    "-o", "--out", type=click.Path(file_okay=False, path_type=Path), help="Write results and report into this folder."
)
@click.option(
    "--run", "run_names", multiple=True, metavar="NAME", help="Run only this run of the scenario; repeatable."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the scenario, as in a.0.b=3; repeatable.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=A,B,C",
    help="Run every combination of these values, as in seed=1,2,3; repeatable.",
)
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Price each run by this prices file, which gateways get as well.",
)
@click.option("--seed", type=int, help="Replace the scenario's seed, or set the first seed of --chaos.")
@click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core.")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")
@click.option("--check", is_flag=True, help="Check every invariant after every event, and the recovery at the end.")
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write every event of one run to this file."
)
@click.option(
    "--chaos",
    is_flag=False,
    flag_value=str(ChaosKind.MESH),
    type=click.Choice([str(kind) for kind in ChaosKind]),
    help="Run random worlds of this kind with faults, drawn from seeds; default kind: mesh.",
)
@click.option("--runs", type=click.IntRange(1), help=f"Run this many worlds of --chaos; default: {_CHAOS_RUNS}.")
@click.option("--first", is_flag=True, help="Stop --chaos at the first seed that finds a fault.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; progress goes to stderr.")
@click.pass_context
def sim(
    context: click.Context,
    *,
    scenario: Path | None,
    out: Path | None,
    run_names: tuple[str, ...],
    settings: tuple[str, ...],
    sweeps: tuple[str, ...],
    prices: Path | None,
    seed: int | None,
    jobs: int | None,
    ray: str | None,
    check: bool,
    trace: Path | None,
    chaos: str | None,
    runs: int | None,
    first: bool,
    as_json: bool,
) -> None:
    """Run SCENARIO in virtual time and report what its gateways would do. SCENARIO is a file, or the name of one that
    comes with this program, such as skewed_day.

    One seed always tells the same story, down to the digest of its trace.

    Exit codes: 0 it was played and nothing was found, 1 the scenario is wrong, an invariant did not hold, or chaos
    found something, 2 the command was used wrongly.
    """
    if (chaos is None) == (scenario is None):
        raise click.UsageError("give either a SCENARIO or --chaos")
    _refuse_what_says_nothing(context)
    _refuse_what_is_said_twice(settings, sweeps, seed, prices)
    if trace is not None and len(run_names) > 1:
        raise click.UsageError("--trace tells of one run: give --run once")
    if trace is not None and runs not in (None, 1):
        raise click.UsageError("--trace tells of one seed: it goes only with --runs 1")
    processes = jobs or os.cpu_count() or 1
    try:
        if chaos is not None:
            seeds = range(1 if seed is None else seed, (1 if seed is None else seed) + (runs or _CHAOS_RUNS))
            with _spread_over(processes, ray) as spread:
                ordeals = _ChaosSeeds(seeds, ChaosKind(chaos))
                context.exit(_run_all(ordeals, spread, out, trace, first=first, as_json=as_json))
        assert scenario is not None, "one of both is given"
        changes = dict(map(setting, settings)) | ({} if seed is None else {"seed": seed})
        changes |= {} if prices is None else {_PRICES_KEY: str(prices.resolve())}
        if trace is not None:
            _write_trace(scenario, changes, run_names, trace, check=check)
            return
        axes = {key: tuple(map(scalar, str(values).split(","))) for key, values in map(pair, sweeps)}
        _play_all(
            scenario,
            changes,
            axes=axes,
            run_names=run_names,
            processes=processes,
            ray=ray,
            out=out,
            check=check,
            as_json=as_json,
        )
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    except Broken as broken:
        raise click.ClickException(str(broken)) from broken


def _refuse_what_says_nothing(context: click.Context) -> None:
    """Refuse an option that would be ignored silently. Raises UsageError."""
    given = {
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT
    }
    for option, others in _APART.items():
        if option in given and (extra := [other for other in others if other in given]):
            raise click.UsageError(f"{option} does not go with {' and '.join(extra)}")


def _refuse_what_is_said_twice(
    settings: Sequence[str], sweeps: Sequence[str], seed: int | None, prices: Path | None
) -> None:
    """Refuse a key given twice, of which one value would be ignored silently. Raises UsageError."""
    given = [("--set", pair(each)[0]) for each in settings] + [("--sweep", pair(each)[0]) for each in sweeps]
    by_option: dict[str, str] = {} if seed is None else {"seed": "--seed"}
    by_option |= {} if prices is None else {_PRICES_KEY: "--prices"}
    for option, key in given:
        if key in by_option:
            raise click.UsageError(f"{key} is given by both {by_option[key]} and {option}")
        by_option[key] = option


# Scenarios


def _play_all(
    scenario: Path,
    changes: Mapping[str, object],
    *,
    axes: Mapping[str, Sequence[object]],
    run_names: tuple[str, ...],
    processes: int,
    ray: str | None,
    out: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    variants = [dict(changes) | variant for variant in grid(axes)]
    loaded = [_playable(scenario, variant) for variant in variants]
    chosen = [(each, name) for each in loaded for name in _chosen(each, run_names)]
    if len(chosen) > _CELLS_MAX:
        raise click.UsageError(f"{len(chosen)} runs are more than the {_CELLS_MAX} that one sweep may have")
    cells = [SweepCell(number, each, name, check) for number, (each, name) in enumerate(chosen)]
    with _spread_over(processes, ray) as spread:
        done = _with_progress(cells, spread)
    documents = [document_of(each, [done[cell.number] for cell in cells if cell.scenario is each]) for each in loaded]
    names = [", ".join(f"{key}={variant[key]}" for key in axes) for variant in variants]
    if out is not None:
        _write(out, names, documents)
    if as_json:
        click.echo(json.dumps(documents[0] if not axes else _sweep_document(names, documents), indent=2))
    else:
        _print(names, documents, out)


def _playable(path: Path, changes: Mapping[str, object]) -> Scenario:
    """Load a scenario and check that it can be simulated. Raises ConfigError."""
    loaded = load_scenario(path, changes)
    check_playable(loaded)
    return loaded


def _chosen(scenario: Scenario, run_names: tuple[str, ...]) -> list[str]:
    known = [run.name for run in scenario.runs]
    if unknown := [name for name in run_names if name not in known]:
        raise click.UsageError(f"no run named {', '.join(unknown)}; there are: {', '.join(known)}")
    return [name for name in known if not run_names or name in run_names]


@contextmanager
def _spread_over(processes: int, ray: str | None) -> Iterator[SeedSpread]:
    """Executor of jobs: processes of this machine, or a Ray cluster. Raises ConfigError if the cluster is
    unavailable."""
    if ray is None:
        yield partial(all_done, processes=processes)
        return
    with connected(ray) as cluster:
        yield partial(all_done_on, cluster, _JOBS_PER_CORE * cluster.cores)


def _with_progress(cells: Sequence[SweepCell], spread: SeedSpread) -> dict[int, Figures]:
    with _progress() as progress:
        task = progress.add_task("runs", total=len(cells))
        milestones = _Milestones(len(cells), progress.console)
        done: dict[int, Figures] = {}
        for cell, figures in spread(play, cells):
            done[cell.number] = figures
            progress.advance(task)
            milestones.advance()
        return done


class _Milestones:
    """Lines of progress where stderr is no terminal and shows no bar: one each tenth of all jobs."""

    def __init__(self, total: int, console: Console) -> None:
        self._total = total
        self._done = 0
        self._console = console

    def advance(self) -> None:
        before, self._done = self._done, self._done + 1
        is_next_tenth = before * 10 // self._total != self._done * 10 // self._total
        if is_next_tenth and not self._console.is_terminal:
            self._console.print(f"{self._done} of {self._total} done", highlight=False)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _write(out: Path, names: Sequence[str], documents: Sequence[Figures]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if len(documents) == 1:
        write_results(out, documents[0])
        return
    for number, document in enumerate(documents):
        write_results(out / f"{number:03}", document)
    (out / "sweep.json").write_text(json.dumps(_sweep_document(names, documents), indent=2) + "\n")
    title = f"{documents[0]['scenario']}: {len(documents)} variants"
    cells = [
        (f"{number:03} {name}", document) for number, (name, document) in enumerate(zip(names, documents, strict=True))
    ]
    (out / "report.html").write_text(sweep_page(title, cells), encoding="utf-8")


def _sweep_document(names: Sequence[str], documents: Sequence[Figures]) -> Figures:
    return {"cells": [{"variant": name, **document} for name, document in zip(names, documents, strict=True)]}


def _print(names: Sequence[str], documents: Sequence[Figures], out: Path | None) -> None:
    rows = (
        (f"{name} {run['name']}".strip(), run["total"])
        for name, document in zip(names, documents, strict=True)
        for run in document["runs"]
    )
    console = wide_console()
    console.print(summary_table(documents[0]["scenario"], rows))
    if len(documents) == 1:
        for sentence in in_short(documents[0]["runs"]):
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    for document in documents:
        for run in document["runs"]:
            if "control" in run:
                console.print(failovers_table(run["name"], run["control"]))
        if any("money" in run for run in document["runs"]):
            console.print(money_table([run for run in document["runs"] if "money" in run]))
    console.print(f"digest {documents[0]['digest']}" if len(documents) == 1 else f"{len(documents)} variants")
    if out is not None:
        console.print(f"Results and report: {out}", soft_wrap=True)


def _write_trace(
    scenario: Path, changes: Mapping[str, object], run_names: tuple[str, ...], trace: Path, *, check: bool
) -> None:
    """Play one run and write its whole trace, even if the run breaks an invariant."""
    loaded = _playable(scenario, changes)
    name = _chosen(loaded, run_names)[0]
    run = next(run for run in loaded.runs if run.name == name)
    with trace.open("w", encoding="utf-8") as file:
        world = World(loaded, run, every_invariant=check, on_line=file.write)
        world.play()
        if check:
            world.check_the_end()
    click.echo(f"digest {world.chronicle.digest()}")


# Chaos


@dataclass(frozen=True, slots=True)
class _ChaosSeeds:
    """Seeds and kind of the chaos worlds."""

    seeds: range
    kind: ChaosKind

    def play(self, seed: int) -> ChaosRun | Finding:
        return run_chaos(seed, self.kind)

    def in_words(self, finding: Finding) -> str:
        replay = f"nightside sim --chaos {self.kind} --runs 1 --seed {finding.seed} --trace story.txt"
        return f"seed {finding.seed}: {finding.what}\n  {finding.detail}\n  replay: {replay}"


def _run_all(
    worlds: _ChaosSeeds, spread: SeedSpread, out: Path | None, trace: Path | None, *, first: bool, as_json: bool
) -> int:
    """Play all seeds. Returns the exit code: 1 if any seed found a fault."""
    if trace is not None:
        return _run_one(worlds, trace)
    findings: list[Finding] = []
    ordeals: list[ChaosRun] = []
    with _progress() as progress:
        task = progress.add_task("seeds", total=len(worlds.seeds))
        milestones = _Milestones(len(worlds.seeds), progress.console)
        for _, outcome in spread(worlds.play, worlds.seeds):
            progress.advance(task)
            milestones.advance()
            if isinstance(outcome, ChaosRun):
                ordeals.append(outcome)
                continue
            findings.append(outcome)
            progress.console.print(worlds.in_words(outcome), soft_wrap=True, markup=False, highlight=False)
            if first:
                break
    if out is not None:
        _write_findings(out, findings, worlds)
    _sum_up(findings, ordeals, as_json=as_json)
    return EXIT_FOUND if findings else 0


def _run_one(worlds: _ChaosSeeds, trace: Path) -> int:
    with trace.open("w", encoding="utf-8") as file:
        outcome = run_chaos(worlds.seeds[0], worlds.kind, file.write)
    if isinstance(outcome, Finding):
        click.echo(worlds.in_words(outcome))
        return EXIT_FOUND
    click.echo(f"seed {outcome.seed}: nothing found, digest {outcome.digest}")
    return 0


def _write_findings(out: Path, findings: Sequence[Finding], worlds: _ChaosSeeds) -> None:
    """Write each finding as a scenario that can be played and reduced by hand."""
    out.mkdir(parents=True, exist_ok=True)
    for finding in findings:
        document = yaml.safe_dump(chaos_document(finding.seed, worlds.kind), sort_keys=False)
        (out / f"chaos-{finding.seed}.yaml").write_text(f"# {finding.what}\n{document}")


def _sum_up(findings: Sequence[Finding], ordeals: Sequence[ChaosRun], *, as_json: bool) -> None:
    figures = {
        "seeds": len(findings) + len(ordeals),
        "findings": [{"seed": each.seed, "what": each.what, "detail": each.detail} for each in findings],
        "requests": sum(each.requests for each in ordeals),
        "forwards": sum(each.forwards for each in ordeals),
        "core_events": sum(each.events for each in ordeals),
        "ends": _added(each.outcomes for each in ordeals),
        "refusals": _added(each.refusals for each in ordeals),
        "held": _added(each.held for each in ordeals),
    }
    if as_json:
        click.echo(json.dumps(figures, indent=2))
        return
    ends = ", ".join(f"{count} {how}" for how, count in _added(each.outcomes for each in ordeals).items())
    click.echo(
        f"{figures['seeds']} seeds, {len(findings)} findings; "
        f"{figures['requests']} requests ({ends}), {figures['forwards']} forwards, {figures['core_events']} events"
    )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for key, count in each.items():
            total[str(key)] = total.get(str(key), 0) + count
    return dict(sorted(total.items(), key=lambda item: -item[1]))
