"""Commands of `nightside gateway`, each loaded when it is called: none but `run` and `check` waits for what serves."""

from __future__ import annotations

import click

from gateway.features.status_views import COMMANDS
from mesh.lazy_group import LazyGroup


@click.group(
    cls=LazyGroup,
    targets={
        "check": "gateway.app.serving_cli:check",
        "config-keys": "gateway.app.config_keys_cli:config_keys",
        "drain": "gateway.app.drain_cli:drain",
        "errors": "gateway.app.errors_cli:errors",
        "metrics": "gateway.app.metrics_cli:metrics",
        "run": "gateway.app.serving_cli:run",
        "status": "gateway.app.status_cli:status",
        "token": "gateway.app.token_cli:token",
        "undrain": "gateway.app.drain_cli:undrain",
        "usage": "gateway.app.usage_cli:usage",
    },
)
def cli() -> None:
    """Run a gateway, check its region file, show its status, or stop its forwarding."""


for command in COMMANDS:
    cli.add_command(command)
