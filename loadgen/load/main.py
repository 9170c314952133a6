"""`nightside load`: sends a scenario's load to live endpoints, region by region, and reports as the simulator does.

Measurements made before a failure or an interruption are always reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path

import click
from rich.console import Console

from gateway.core.vocabulary import ModelName
from loadgen.figures import Figures
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal
from loadgen.live_client import EndpointDialect
from loadgen.live_runner import LiveRunner, LoadPlan
from loadgen.load.agreement import BUSY_SHARE
from loadgen.load.outcome import LiveRun, live_document, live_figures
from loadgen.load.plan import LiveLimits, only_simulated, plan_of, read_keys, urls_by_region, without_a_fleet
from loadgen.load.screen import Screen
from loadgen.machine import CpuSampler
from loadgen.results import summary_table, write_results
from loadgen.settings import setting
from loadgen.shipped import SCENARIO
from loadgen.simulator.scenario import load_scenario
from loadgen.vocabulary import ApiKind
from loadgen.wide_console import wide_console
from mesh.clock import Clock
from mesh.faults import ConfigError

EXIT_PROBLEM = 1
_SECOND_NS = 1_000_000_000


@click.command()
@click.argument("scenario", type=SCENARIO)
@click.option(
    "--url",
    "urls",
    multiple=True,
    required=True,
    metavar="[REGION=]URL",
    help="Set the URL that a region's clients send to; repeatable.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="OWNER=KEY",
    help="Set the API key of OWNER: REGION, REGION/TENANT or *; repeatable.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read API keys from this YAML file of OWNER: KEY, which keeps them out of `ps`.",
)
@click.option("--model", help="Replace the scenario's model.")
@click.option(
    "--api",
    type=click.Choice([str(api) for api in ApiKind]),
    default=str(ApiKind.CHAT),
    show_default=True,
    help="Send by this API.",
)
@click.option("--no-usage", is_flag=True, help="Do not request token counts; each event counts as one token.")
@click.option("--ignore-eos", is_flag=True, help="Request exactly the scenario's number of tokens from vLLM or SGLang.")
@click.option("--duration", metavar="TIME", help="Send load for this long, as 90s, instead of the scenario's duration.")
@click.option("--seed", type=int, help="Replace the scenario's seed.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the scenario, as in a.0.b=3; repeatable.",
)
@click.option(
    "--connections-max",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Limit the requests in flight; further ones fail without being sent.",
)
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Verify https endpoints by this file of CA certificates (PEM).",
)
@click.option(
    "-o", "--out", type=click.Path(file_okay=False, path_type=Path), help="Write results and report into this folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; progress goes to stderr.")
@click.pass_context
def load(
    context: click.Context,
    *,
    scenario: Path,
    urls: tuple[str, ...],
    keys: tuple[str, ...],
    key_file: Path | None,
    model: str | None,
    api: str,
    no_usage: bool,
    ignore_eos: bool,
    duration: str | None,
    seed: int | None,
    settings: tuple[str, ...],
    connections_max: int,
    ca_file: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Send the load of SCENARIO to live OpenAI-compatible endpoints and report what clients measure. SCENARIO is a
    file, or the name of one that comes with this program, such as live_mixed; regions, engines and distances may be
    left out of it.

    Exit codes: 0 it ran, 1 nothing was answered or the scenario is wrong, 2 the command was used wrongly, 130 it was
    stopped (Ctrl-C), and what was measured until then is reported.
    """
    changes = dict(map(setting, settings))
    changes |= {key: value for key, value in (("duration", duration), ("seed", seed)) if value is not None}
    try:
        loaded = load_scenario(scenario, changes, without_a_fleet)
        dialect = EndpointDialect(ModelName(model or loaded.model), ApiKind(api), not no_usage, ignore_eos)
        limits = LiveLimits(connections_max, _tls(ca_file))
        plan = plan_of(loaded, urls_by_region(urls, loaded), read_keys(keys, key_file, loaded), dialect, limits)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    console = Console(stderr=True)
    for words in only_simulated(loaded):
        console.print(f"Left out: {words}.", highlight=False)
    run = asyncio.run(send(plan, console, name=loaded.name))
    document = live_document(loaded, [live_figures(loaded, run)])
    if out is not None:
        write_results(out, document)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        _print(document, out)
    (figures,) = document["runs"]
    if not run.is_partial and (reason := why_nothing(figures)):
        console.print(reason, soft_wrap=True, highlight=False, markup=False, style="red")
    context.exit(_exit_code(run, figures))


def _tls(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file {ca_file}: holds no certificates that can be read: {error}") from error


async def send(plan: LoadPlan, console: Console, *, name: str) -> LiveRun:
    """Send the whole load, or until a signal ends it; on a terminal, a table shows the progress."""
    runner = LiveRunner(plan, clock=Clock())
    cpu = CpuSampler((os.getpid(),))

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(cpu.run())]
            if console.is_terminal:
                background.append(tasks.create_task(Screen(console, name, runner, cpu).run()))
            try:
                await runner.run()
            finally:
                for task in background:
                    task.cancel()

    is_partial = await ends_by_signal(run())
    return LiveRun(name, runner.records, runner.samples, round(runner.load_s * _SECOND_NS), is_partial, cpu.use())


def why_nothing(run: Figures) -> str:
    """Reason why no answer was measured; empty if one was."""
    total = run["total"]
    if total["completed"]:
        return ""
    if not run["all_requests"]:
        return "Nothing was sent: no user was due to ask before the load ended; a longer --duration may help."
    if not total["requests"]:
        warm_up_s = run["measured_s"][0]
        return (
            f"Nothing was measured: all {run['all_requests']} requests were of the warm-up, the first {warm_up_s:g} s."
        )
    reasons = "".join(f"; {count} × {detail}" for detail, count in total["failures"].items())
    return f"None of {total['requests']} requests was answered{reasons}."


def _exit_code(run: LiveRun, figures: Figures) -> int:
    if run.is_partial:
        return EXIT_INTERRUPTED
    return 0 if figures["total"]["completed"] else EXIT_PROBLEM


def _print(document: Figures, out: Path | None) -> None:
    (run,) = document["runs"]
    rows = [*run["regions"].items(), ("all", run["total"])] if len(run["regions"]) > 1 else [("all", run["total"])]
    console = wide_console()
    console.print(summary_table(document["scenario"], rows))
    for detail, count in run["total"]["failures"].items():
        console.print(f"{count} × {detail}", soft_wrap=True, markup=False, highlight=False, style="red")
    for words in _caveats(run):
        console.print(words, soft_wrap=True, highlight=False)
    if out is not None:
        console.print(f"Results and report: {out}", soft_wrap=True)


def _caveats(run: Figures) -> list[str]:
    """Caveats about the figures: an early end, a busy machine, late sending."""
    words = []
    if run["partial"]:
        words.append(f"Stopped after {run['load_s']:g} s of load; what was open then counts as unfinished.")
    if run["machine_cpu"] is not None and run["machine_cpu"]["mean_share"] > BUSY_SHARE:
        words.append(f"This machine was {run['machine_cpu']['mean_share']:.0%} busy, which shows in the latencies.")
    if run["lag_ms"] is not None and run["lag_ms"]["p99"] > 10:
        words.append(f"Requests left up to {run['lag_ms']['p99']:.0f} ms (p99) after they were due; that is counted.")
    return words
