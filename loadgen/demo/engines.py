"""All of the demo's engines in one process, so that they cost one interpreter: `python -m loadgen.demo.engines`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

import click
import uvloop

from loadgen.engine.presets import PRESETS
from loadgen.engine.server import serve_engines
from loadgen.engine.server_config import EngineServerConfig


@click.command()
@click.argument("ports", type=int, nargs=-1, required=True)
@click.option("--model", required=True)
@click.option("--preset", required=True, type=click.Choice(list(PRESETS)))
@click.option("--slots", required=True, type=int, help="Requests that each engine runs at once.")
def main(ports: Sequence[int], model: str, preset: str, slots: int) -> None:
    """Serve one engine on each of PORTS until SIGTERM."""
    engine = replace(PRESETS[preset], sequences_max=slots)
    uvloop.run(_serve([EngineServerConfig(model=model, engine=engine, port=port, ignore_eos=True) for port in ports]))


async def _serve(configs: Sequence[EngineServerConfig]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_engines(configs):
        await stop.wait()


if __name__ == "__main__":
    main()
