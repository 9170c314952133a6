"""`nightside results eldr`: compares expert locality with ELDR's figures, and writes its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins
from rich.console import Console

from loadgen.studies.commands import options, refuse_over_the_whole, write
from loadgen.studies.eldr.recorded import PICKS
from loadgen.studies.progress import played_whole
from loadgen.traces.files import TraceError

if TYPE_CHECKING:
    from loadgen.studies.eldr.plan import EldrResults
    from loadgen.studies.eldr.workloads import EldrWorkload


@click.command()
@options("traces", "quick")
@click.option(
    "--fit", "only_fit", is_flag=True, help="Fit the generator to the recording and print it, without running anything."
)
@options("out", "cache", "jobs", "json")
def eldr(
    *, traces: Path | None, quick: bool, only_fit: bool, out: Path | None, cache_folder: Path, jobs: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare expert locality with ELDR's published figures, in OUT/eldr.md; takes some minutes of one core.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick:
        refuse_over_the_whole("--quick", out)
    try:
        from loadgen.studies.eldr.page import NAME, page_of  # noqa: PLC0415 - an optional extra
        from loadgen.studies.eldr.plan import cells_of, results_of  # noqa: PLC0415
        from loadgen.studies.eldr.workloads import FULL, QUICK, drawn_workloads, has_recording, recorded  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error}: it fits, which needs the extra `fit`") from error
    sizes = QUICK if quick else FULL
    progress = Console(stderr=True)
    try:
        with progress.status("drawing requests") as status:
            if only_fit:
                if traces is None or not has_recording(traces):
                    raise click.UsageError("--fit: name with --traces a folder that holds the recording")
                click.echo(json.dumps(_fitted(recorded(traces), status.update), indent=2))
                return
            workloads = drawn_workloads(traces, sizes)
            cells = cells_of(workloads, traces, sizes)
        found = played_whole(cells, cache_folder, jobs)
        with progress.status("timing a decision, and a fit"):
            results = results_of(found, workloads, sizes)
    except (TraceError, OSError) as error:
        raise click.ClickException(str(error)) from error
    pages = {NAME: page_of(results, quick=quick)}
    write(out, pages, json.dumps(_document(results), indent=2) if as_json else None)


def _fitted(workload: EldrWorkload, on_progress: Any) -> dict[str, Any]:
    from loadgen.studies.eldr.fit_generator import figures_of, fit_domains, fit_spread  # noqa: PLC0415 - as above
    from loadgen.studies.eldr.generator import QWEN3_30B  # noqa: PLC0415
    from loadgen.studies.eldr.spreads import PUBLISHED_FEWER, TASKS  # noqa: PLC0415

    spread = fit_spread(workload.calibration, PICKS, on_progress)
    published = fit_domains(QWEN3_30B, spread, TASKS, PUBLISHED_FEWER)
    found = {"recorded": figures_of(workload.calibration), "spread": to_builtins(spread)}
    return found | {"as_published": to_builtins(published)}


def _document(results: EldrResults) -> dict[str, Any]:
    return {
        "main": {
            f"{name}, {policy}, {rate:g}/s": list(figures)
            for name, found in results.main.items()
            for (policy, rate), figures in found.items()
        },
        **{
            section: {f"{name}, {row}": figures for (name, row), figures in found.items()}
            for section, found in results.sections.items()
        },
        "costs": {f"{workers}, {core}": figures for (workers, core), figures in results.costs.items()},
        "journal": results.journal,
        "scores": {name: to_builtins(each) for name, each in results.scores.items()},
        "fit": results.fit,
    }
