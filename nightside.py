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
    "gateway": (
        "gateway.app.commands:cli",
        "Run a gateway, check its region file, show its status, or stop its forwarding.",
    ),
    "controller": ("controller.commands:cli", "Run a mesh's controller, check its file, or replay its journal."),
    "ctl": ("controller.ctl.commands:ctl", "Query and manage a running controller."),
    "policy": ("gateway.policy.command:policy", "Check residency policy files and explain what they allow."),
    "keys": ("gateway.security.keys_cli:keys", "Manage the API keys of a gateway's clients."),
    "dev-certs": ("gateway.security.dev_certs_cli:dev_certs", "Create certificates for development."),
    "batch": ("gateway.features.batches.cli:batch", "Send files of requests to a gateway, and fetch their results."),
    "replica": ("gateway.features.leaving.cli:replica", "Announce that a gateway's replica will soon be gone."),
    "explain": ("gateway.app.explain_cli:explain", "Explain why a request ran where it did."),
    "audit": ("gateway.app.audit_cli:audit", "Verify audit records and compare them with policies."),
    "replay": ("gateway.records.journal_cli:replay", "Replay a gateway's journal and compare every decision."),
    "completion": ("mesh.completion_cli:completion", "Generate the shell completion script."),
    "command-line": ("mesh.command_line_cli:command_line", "List every command, option, default and exit code."),
    "fit": ("loadgen.fit.main:fit", "Train predictors and expert locality offline."),
    "engine": ("loadgen.engine.main:main", "Run an emulated inference engine, without a GPU."),
    "demo": ("loadgen.demo.main:demo", "Run three regions on this machine and show the gain of forwarding."),
    "sim": ("loadgen.simulator.main:sim", "Run a scenario in virtual time, or search for faults."),
    "load": ("loadgen.load.main:load", "Send a scenario's load to live endpoints and report."),
    "plan": ("loadgen.planner.command:plan_command", "Size a model's fleet as one pool and as two."),
    "trace": ("loadgen.traces.main:trace", "Inspect and convert recorded load."),
    "agreement": ("loadgen.load.agreement_cli:agreement", "Run one scenario live and in simulation, and compare."),
    "results": ("loadgen.studies.main:results", "Repeat published measurements and write pages of results."),
    "bench": ("loadgen.bench.main:bench", "Measure the components that every request passes through."),
}
"""Target (module:attribute) of each subcommand, and the line that `--help` shows for it."""


DEVELOPERS = frozenset({"fit", "engine", "demo", "sim", "load", "plan", "trace", "agreement", "results", "bench"})
"""Subcommands for trying out, measuring and developing. All others are for operators."""


PACKAGES = ("gateway", "controller", "loadgen", "mesh", "protos")
"""Own packages. Another distribution, or a folder of PYTHONPATH, may have such a name too:
docs/decisions/0014-packages-at-the-top.md."""


def packages_from_elsewhere(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Own packages that Python would import from another place than beside this module, and that place."""
    ours = Path(__file__).resolve().parent
    found = {name: importlib.util.find_spec(name) for name in packages}
    places = {name: "nowhere" if spec is None else str(spec.origin) for name, spec in found.items()}
    return {name: place for name, place in places.items() if Path(place).resolve().parent != ours / name}


class Groups(click.Group):
    """Command group that lists its commands by audience."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own signature
        groups = {"Operate": COMMANDS.keys() - DEVELOPERS, "Try, measure and develop": DEVELOPERS}
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
        importlib.import_module("mesh.environment").keep_grpc_quiet()
        module_name, _, attribute = self.target.partition(":")
        gc.disable()  # modules stay: collecting among them takes a tenth of the start
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        finally:
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
    """Run and manage gateways that send a busy region's LLM requests to another region's idle engines.

    Exit codes: 0 all is well, 1 a problem was found, 2 the command was used wrongly.
    """


if __name__ == "__main__":
    main(prog_name="nightside")
