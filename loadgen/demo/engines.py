"""Runs all of the demo's engines in one process, so that they need one interpreter: `python -m
loadgen.demo.engines`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

import click
import uvloop

from gateway.core.vocabulary import ReplicaRole
from loadgen.demo.scenario import CONNECTOR
from loadgen.engine.expert_counts import ExpertShape
from loadgen.engine.handoff import HandoffConfig
from loadgen.engine.presets import PRESETS
from loadgen.engine.server import serve_engines
from loadgen.engine.server_config import EngineServerConfig


@click.command()
@click.argument("engines", nargs=-1, required=True, metavar="PORT=SLOTS...")
@click.option("--model", required=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--preset", required=True, type=click.Choice(list(PRESETS)))
@click.option("--prefill", type=int, multiple=True, help="Run a prefill worker on this port.")
@click.option("--decode", type=int, multiple=True, help="Run a decode worker on this port.")
@click.option("--experts", help="Report an emulated mixture of experts on prefill workers: L layers x E x K per token.")
def main(
    engines: Sequence[str],
    *,
    model: str,
    host: str,
    preset: str,
    prefill: Sequence[int],
    decode: Sequence[int],
    experts: str | None,
) -> None:
    """Serve an engine on each PORT that runs SLOTS requests at once, until SIGTERM."""
    configs = []
    for each in engines:
        port, _, slots = each.partition("=")
        engine = replace(PRESETS[preset], sequences_max=int(slots))
        configs.append(EngineServerConfig(model=model, engine=engine, host=host, port=int(port), ignore_eos=True))
    shape = None if experts is None else ExpertShape(*map(int, experts.split("x")))
    handoffs = dict.fromkeys(prefill, HandoffConfig(CONNECTOR, ReplicaRole.PREFILL, experts=shape))
    handoffs |= dict.fromkeys(decode, HandoffConfig(CONNECTOR, ReplicaRole.DECODE))
    uvloop.run(_serve([replace(config, handoff=handoffs.get(config.port)) for config in configs]))


async def _serve(configs: Sequence[EngineServerConfig]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_engines(configs):
        await stop.wait()


if __name__ == "__main__":
    main()
