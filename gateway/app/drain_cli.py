"""Commands `nightside gateway drain`, which makes a running gateway reject new requests and finish the others, and
`undrain`, which ends that.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from mesh.admin_client import Admin, AdminFault, admin_options


@click.command()
@admin_options
def drain(admin: Admin) -> None:
    """Drain a gateway: reject new requests with 503, and let requests in flight finish.

    Other gateways are told, and `/ready` answers 503. The process stays, unlike after SIGTERM; `undrain` reverts it.

    Exit codes: 0 it drains, 1 it does not.
    """
    answer = admin.ask("POST", "/admin/drain", {})
    if answer.status != 200:
        raise AdminFault(answer.fault)
    told: dict[str, Any] = msgspec.json.decode(answer.body)
    click.echo(f"draining: {told['requests']} requests are left")


@click.command()
@admin_options
def undrain(admin: Admin) -> None:
    """Accept requests on a drained gateway again.

    A gateway that a controller drains stays drained until `nightside ctl gateways undrain`.

    Exit codes: 0 it takes requests, 1 it does not.
    """
    answer = admin.ask("POST", "/admin/undrain", {})
    if answer.status != 200:
        raise AdminFault(answer.fault)
    told: dict[str, Any] = msgspec.json.decode(answer.body)
    if told["drained_by_controller"]:
        raise AdminFault("it is drained at the controller: nightside ctl gateways undrain GATEWAY")
    click.echo("undrained: it takes requests again")
