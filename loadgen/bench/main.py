"""`nightside bench`: runs the benches beside this module and prints their figures. It judges none of them.

A bench is a module here with a function `run()`, which returns the figures it measured by name, the unit last in each.
The packages `decode`, `relay` and `scale` are commands of their own: one needs other projects' relays, all need
minutes.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Mapping
from typing import Protocol, cast

import click

import loadgen.bench
from loadgen.bench.decode.main import decode
from loadgen.bench.relay.main import relay
from loadgen.bench.scale.main import scale

Figures = Mapping[str, object]
_PARTS = "parts"


class Bench(Protocol):
    """Interface of a bench module."""

    def run(self) -> Figures: ...


_NO_BENCHES = {"main", "moe_layer"}
"""Modules that are not benches; `moe_layer` is run by itself on a machine with a GPU."""


def bench_names() -> list[str]:
    """Names of the benches beside this module, in the order in which they run."""
    modules = pkgutil.iter_modules(loadgen.bench.__path__)
    return sorted(module.name for module in modules if module.name not in _NO_BENCHES and not module.ispkg)


def load_bench(name: str) -> Bench:
    return cast(Bench, importlib.import_module(f"loadgen.bench.{name}"))


def as_text(value: object) -> str:
    match value:
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def as_table(figures: Figures) -> str:
    width = max((len(name) for name in figures), default=0)
    return "\n".join(f"  {name:<{width}}  {as_text(value)}" for name, value in figures.items())


def print_tables(benches: Mapping[str, Bench]) -> None:
    """Print each bench's figures as soon as it has run."""
    for name, module in benches.items():
        click.echo(f"{name}\n{as_table(module.run())}")


def print_json(benches: Mapping[str, Bench]) -> None:
    click.echo(json.dumps({name: module.run() for name, module in benches.items()}, indent=2))


class _BenchGroup(click.Group):
    """Command group in which words that name no command are names of benches, and no words mean all benches."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_command = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if asks_for_command else [_PARTS, *args])


@click.group(cls=_BenchGroup, commands={"decode": decode, "relay": relay, "scale": scale})
def bench() -> None:
    """Measure the components that every request passes through, or a whole gateway beside other relays."""


@bench.command(_PARTS)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: bench, figure, value.")
def parts(names: tuple[str, ...], as_json: bool) -> None:
    """Measure the components that every request passes through.

    Runs the benches named, or all of them. Figures depend on the machine: compare ratios, or runs on one machine.
    """
    known = bench_names()
    chosen = [name.replace("-", "_") for name in names] or known
    if unknown := sorted(set(chosen) - set(known)):
        raise click.UsageError(f"no bench named {', '.join(unknown)}; there are: {', '.join(known) or 'none'}")
    benches = {name: load_bench(name) for name in chosen}
    if as_json:
        print_json(benches)
    else:
        print_tables(benches)
