"""Command `engine`: serve emulated engines until stopped. It parses options, starts, announces and waits."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.core.features.expert_locality.artifact import EXPERTS_MAX, LAYERS_MAX
from gateway.core.vocabulary import Connector, ReplicaRole
from loadgen.engine.expert_counts import ExpertShape
from loadgen.engine.handoff import EngineDied, HandoffConfig
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.presets import PRESETS
from loadgen.engine.server import EngineServer, serve_engines
from loadgen.engine.server_config import EngineServerConfig


@dataclass(frozen=True, slots=True)
class EngineAnnouncement:
    """Report on standard output that the engines are ready, to the user or to the program that started them."""

    as_json: bool

    def make(self, servers: list[EngineServer]) -> None:
        if self.as_json:
            click.echo(json.dumps({"engines": [describe(server) for server in servers]}))
            return
        table = Table("url", "model", "adapters")
        for server in servers:
            table.add_row(server.url, server.config.model, ", ".join(server.config.adapters))
        Console().print(table)


def describe(server: EngineServer) -> dict[str, object]:
    return {"url": server.url, "model": server.config.model, "adapters": list(server.config.adapters)}


async def serve_until_stopped(configs: list[EngineServerConfig], announcement: EngineAnnouncement) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serve_engines(configs) as servers:
        announcement.make(servers)
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(stopped.wait()), tasks.create_task(_all_dead(servers))]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
    if not stopped.is_set():
        raise EngineDied("\n".join(f"{server.url}: {server.why_dead}" for server in servers))


async def _all_dead(servers: list[EngineServer]) -> None:
    """Wait until every engine has died: each is like a process of its own, and one death leaves the others running."""
    for server in servers:
        await server.died.wait()


@click.command("engine")
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="tiny",
    show_default=True,
    help="Set size and speed by a preset.",
)
@click.option("--model", required=True, help="Set the model's name.")
@click.option("--adapter", "adapters", multiple=True, help="Serve this LoRA adapter as well; repeatable.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9001,
    show_default=True,
    help="Listen on this port; 0 takes a free one.",
)
@click.option(
    "--count",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Run this many engines, on consecutive ports.",
)
@click.option("--time-scale", type=click.FloatRange(0.001, 1000), default=1.0, show_default=True,
              help="Set wall time per model time; 0.25 is four times as fast.")  # fmt: skip
@click.option(
    "--queued-requests-max", type=click.IntRange(1), help="Reject requests beyond this many waiting requests."
)
@click.option("--max-model-len", "context_tokens_max", type=click.IntRange(1),
              help="Refuse requests of more tokens than this.")  # fmt: skip
@click.option(
    "--max-num-seqs",
    "sequences_max",
    type=click.IntRange(1),
    help="Set the number of concurrent requests, instead of the preset's.",
)
@click.option("--ignore-eos", is_flag=True, help="Make every answer as long as its limit allows.")
@click.option("--seed", type=int, default=0, show_default=True, help="Set the seed of answers' lengths.")
@click.option("--faults", is_flag=True, help="Accept POST /faults, which makes an engine misbehave.")
@click.option("--role", type=click.Choice([str(role) for role in ReplicaRole]), default="unified", show_default=True,
              help="Run as a prefill worker, a decode worker, or both (unified).")  # fmt: skip
@click.option("--connector", type=click.Choice([str(each) for each in Connector]), default="nixl", show_default=True,
              help="Set the KV connector of a prefill or decode worker.")  # fmt: skip
@click.option("--lease", type=click.FloatRange(0.001), default=30.0, show_default=True,
              help="Set the seconds of model time for which a prefill worker keeps unfetched KV blocks.")  # fmt: skip
@click.option("--transfer-ms", type=click.FloatRange(0), default=2.0, show_default=True,
              help="Set the milliseconds that a KV transfer takes.")  # fmt: skip
@click.option("--kv-load-failure", type=click.Choice(["fail", "recompute"]), default="fail", show_default=True,
              help="Set what a decode worker does when a KV transfer fails.")  # fmt: skip
@click.option(
    "--experts",
    metavar="LxExK",
    help="Report an emulated mixture of experts on a prefill worker: L layers of E experts, K per token.",
)
@click.option("--bootstrap-port", type=click.IntRange(0, 65_535), default=0, show_default=True,
              help="Set the bootstrap port of a prefill worker of Mooncake or SGLang; 0 is its own port.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Run this many data-parallel ranks in lockstep behind one URL.")  # fmt: skip
@click.option("--kv-token-ns", type=click.IntRange(0), default=0, show_default=True,
              help="Set the nanoseconds that each KV token adds to an iteration.")  # fmt: skip
@click.option("--step-trace", type=click.Path(file_okay=False, path_type=Path),
              help="Write each rank's iterations into this folder, one file per rank.")  # fmt: skip
@click.option("--kv-events-port", type=click.IntRange(1, 65_535),
              help="Publish KV events on this port and repeat them on the next, two for each engine.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Announce the URLs as one line of JSON.")
def main(
    *,
    preset: str,
    model: str,
    adapters: tuple[str, ...],
    host: str,
    port: int,
    count: int,
    time_scale: float,
    queued_requests_max: int | None,
    context_tokens_max: int | None,
    sequences_max: int | None,
    ignore_eos: bool,
    seed: int,
    faults: bool,
    role: str,
    connector: str,
    lease: float,
    transfer_ms: float,
    kv_load_failure: str,
    experts: str | None,
    bootstrap_port: int,
    ranks: int,
    kv_token_ns: int,
    step_trace: Path | None,
    kv_events_port: int | None,
    as_json: bool,
) -> None:
    """Run an emulated inference engine, with the API, metrics and errors of a real one and no GPU."""
    if step_trace is not None and ranks == 1 and not kv_token_ns:
        raise click.UsageError("--step-trace tells of ranks that wait for each other: give --ranks or --kv-token-ns")
    if kv_events_port is not None and ranks > 1:
        raise click.UsageError("--kv-events-port takes an engine of one rank")
    sized = PRESETS[preset]
    if not isinstance(sized.cost, LinearCost) and (ranks > 1 or kv_token_ns):
        raise click.UsageError(f"--preset {preset} has a cost of its own: it does not go with --ranks or --kv-token-ns")
    if sequences_max is not None and sequences_max >= sized.batch_tokens_max:
        raise click.UsageError(f"--max-num-seqs should be below {sized.batch_tokens_max}, the tokens of one iteration")
    handoff = HandoffConfig(
        Connector(connector),
        ReplicaRole(role),
        lease_s=lease,
        transfer_s=transfer_ms / 1_000,
        recomputes=kv_load_failure == "recompute",
        experts=None if experts is None else _shape_of(experts),
    )
    config = EngineServerConfig(
        model=model,
        engine=replace(
            sized,
            queued_requests_max=queued_requests_max,
            context_tokens_max=min(context_tokens_max or sized.context_tokens_max, sized.context_tokens_max),
            sequences_max=sequences_max or sized.sequences_max,
        ),
        adapters=adapters,
        host=host,
        time_scale=time_scale,
        faults=faults,
        seed=seed,
        ignore_eos=ignore_eos,
        ranks=ranks,
        kv_token_ns=kv_token_ns,
        handoff=None if handoff.role is ReplicaRole.UNIFIED else handoff,
        step_trace=step_trace,
    )
    configs = [
        replace(
            config,
            port=port + index if port else 0,
            kv_events_ports=_two_ports(kv_events_port, index),
            handoff=config.handoff
            and replace(config.handoff, bootstrap_port=bootstrap_port + index if bootstrap_port else 0),
        )
        for index in range(count)
    ]
    try:
        uvloop.run(serve_until_stopped(configs, EngineAnnouncement(as_json)))
    except EngineDied as died:
        raise click.ClickException(str(died)) from died
    except ExceptionGroup as failures:
        of_the_network, others = failures.split(OSError)
        if of_the_network is None or others is not None:
            raise
        raise click.ClickException(str(of_the_network.exceptions[0])) from failures


def _two_ports(first: int | None, index: int) -> tuple[int, int] | None:
    """Ports of one engine's KV events."""
    return None if first is None else (first + 2 * index, first + 2 * index + 1)


def _shape_of(text: str) -> ExpertShape:
    try:
        layers, experts, picks = (int(each) for each in text.split("x"))
        if layers < 1 or not 1 <= picks <= experts <= EXPERTS_MAX or layers > LAYERS_MAX:
            raise ValueError
    except ValueError:
        raise click.BadParameter(f"{text!r}: should be such as 48x128x8", param_hint="--experts") from None
    return ExpertShape(layers, experts, picks)
