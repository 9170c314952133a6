"""Command `nightside`: finds the subcommand's module and loads it only when that subcommand runs.

No module imports this one, and it must import no part of the product before it is asked to run it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import click

COMMANDS = {
    "gateway": ("gateway.app.commands:cli", "Serve one region."),
    "controller": (
        "controller.commands:cli",
        "Assign replicas to gateways, and move them when one dies.",
    ),
    "ctl": ("controller.ctl.commands:ctl", "Ask a controller, and order it."),
    "policy": ("gateway.policy.command:policy", "Check a residency policy and explain its decisions."),
    "keys": ("gateway.security.keys_cli:keys", "Say who may call a gateway, and how much."),
    "dev-certs": ("gateway.security.dev_certs_cli:dev_certs", "Make certificates to try TLS with."),
    "explain": ("gateway.records.explain_cli:explain", "Say why a request ran where it did."),
    "audit": (
        "gateway.records.audit_cli:audit",
        "Check the record of where requests ran, and hold it against policies.",
    ),
    "replay": ("gateway.records.journal_cli:replay", "Replay a gateway's journal and compare every decision."),
    "completion": ("gateway.ground.completion_cli:completion", "Print what makes a shell complete these commands."),
    "fit": ("loadgen.fit.main:fit", "Fit what predicts how long requests still decode, and say how good it is."),
    "engine": ("loadgen.engine.main:main", "Serve a modelled engine that speaks the API of a real one."),
    "demo": ("loadgen.demo.main:demo", "Run three regions on this machine and show what forwarding gains."),
    "sim": ("loadgen.simulator.main:sim", "Play a scenario in virtual time and report, or look for faults."),
    "load": ("loadgen.load.main:load", "Send a scenario's load to live endpoints and report."),
    "plan": (
        "loadgen.planner.command:plan_command",
        "Size a model's fleet as one pool and as two, before anything is changed.",
    ),
    "trace": ("loadgen.traces.main:trace", "Look at a recorded load, and write it in Nightside's own format."),
    "agreement": ("loadgen.load.agreement_cli:agreement", "Play one scenario live and simulated, and compare."),
    "results": ("loadgen.evaluation.main:results", "Measure against what papers published, and write it down."),
    "bench": ("loadgen.bench.main:bench", "Measure the parts that every request passes through."),
}
"""Target (module:attribute) of each subcommand, and the line that `--help` shows for it."""


DEVELOPERS = frozenset({"fit", "engine", "demo", "sim", "load", "plan", "trace", "agreement", "results", "bench"})
"""Subcommands for trying out, measuring and developing. All others are for operators."""


PACKAGES = ("gateway", "controller", "loadgen", "protos")
"""Own packages. Another distribution, or a folder of PYTHONPATH, may have such a name too:
docs/decisions/0014-four-packages.md."""


def packages_from_elsewhere(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Own packages that Python would import from another place than beside this module, and that place."""
    ours = Path(__file__).resolve().parent
    found = {name: importlib.util.find_spec(name) for name in packages}
    places = {name: "nowhere" if spec is None else str(spec.origin) for name, spec in found.items()}
    return {name: place for name, place in places.items() if Path(place).resolve().parent != ours / name}


class Groups(click.Group):
    """Command group that lists its commands by audience."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own signature
        groups = {"For operators": COMMANDS.keys() - DEVELOPERS, "To try out, measure and develop": DEVELOPERS}
        width = max(map(len, COMMANDS))
        for title, names in groups.items():
            rows = [(name.ljust(width), text) for name, (_, text) in COMMANDS.items() if name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


class LazyCommand(click.Command):
    """Placeholder of a subcommand in the help, which loads the real one as soon as it is called."""

    def __init__(self, name: str, target: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.target = target

    def load(self) -> click.Command:
        if elsewhere := packages_from_elsewhere():
            taken = ", ".join(f"{name} from {place}" for name, place in elsewhere.items())
            raise click.ClickException(
                f"Python takes {taken}, and not from {Path(__file__).resolve().parent}: something else has that name. "
                "Install Nightside into an environment of its own, and look at PYTHONPATH."
            )
        importlib.import_module("gateway.ground.environment").keep_grpc_quiet()
        module_name, _, attribute = self.target.partition(":")
        gc.disable()  # modules stay: collecting among them takes a tenth of the start
        command = getattr(importlib.import_module(module_name), attribute)
        gc.enable()
        assert isinstance(command, click.Command), f"{self.target} is not a command"
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)


@click.group(
    "nightside",
    cls=Groups,
    commands={name: LazyCommand(name, target, short_help) for name, (target, short_help) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="nightside", prog_name="nightside")
def main() -> None:
    """Gateways that run a busy region's LLM requests on another region's idle engines.

    Exit codes: 0 all is well, 1 a problem was found, 2 the command was used wrongly.
    """


if __name__ == "__main__":
    main(prog_name="nightside")
