"""The command `engine`: serve emulated engines until told to stop. It parses options, starts, announces and waits."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass, replace

import click
import uvloop
from rich.console import Console
from rich.table import Table

from loadgen.engine.presets import PRESETS
from loadgen.engine.server import EngineServer, serve_engines
from loadgen.engine.server_config import EngineServerConfig


@dataclass(frozen=True, slots=True)
class Announcement:
    """How to tell the user, or the program that started us, that the engines are ready."""

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


async def serve_until_stopped(configs: list[EngineServerConfig], announcement: Announcement) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serve_engines(configs) as servers:
        announcement.make(servers)
        await stopped.wait()


@click.command("engine")
@click.option("--preset", type=click.Choice(sorted(PRESETS)), default="tiny", show_default=True, help="Size and speed.")
@click.option("--model", required=True, help="The model's name.")
@click.option("--adapter", "adapters", multiple=True, help="A LoRA adapter to serve as well; may be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), default=9001, show_default=True, help="0: any free port.")
@click.option("--count", type=click.IntRange(1, 256), default=1, show_default=True, help="Engines, on ports in a row.")
@click.option("--time-scale", type=click.FloatRange(0.001, 1000), default=1.0, show_default=True,
              help="Wall time over model time: 0.25 is four times as fast.")  # fmt: skip
@click.option("--queued-requests-max", type=click.IntRange(1), help="Reject requests beyond this many waiting ones.")
@click.option("--ignore-eos", is_flag=True, help="Make every answer as long as it may be.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the drawn lengths of answers.")
@click.option("--faults", is_flag=True, help="Let POST /faults make an engine misbehave.")
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
    ignore_eos: bool,
    seed: int,
    faults: bool,
    as_json: bool,
) -> None:
    """Serve a modelled engine that speaks the API of a real one: same metrics, same errors, no GPU."""
    config = EngineServerConfig(
        model=model,
        engine=replace(PRESETS[preset], queued_requests_max=queued_requests_max),
        adapters=adapters,
        host=host,
        time_scale=time_scale,
        faults=faults,
        seed=seed,
        ignore_eos=ignore_eos,
    )
    configs = [replace(config, port=port + index if port else 0) for index in range(count)]
    try:
        uvloop.run(serve_until_stopped(configs, Announcement(as_json)))
    except ExceptionGroup as failures:
        of_the_network, others = failures.split(OSError)
        if of_the_network is None or others is not None:
            raise
        raise click.ClickException(str(of_the_network.exceptions[0])) from failures
