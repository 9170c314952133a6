"""Commands `nightside gateway drain`, which makes a running gateway reject new requests and finish the others, and
`undrain`, which ends that.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from gateway.ground.admin_client import Admin, AdminFault, admin_options


@click.command()
@admin_options
def drain(admin: Admin) -> None:
    """Have one gateway take nothing new. Clients get 503, other gateways are told, `/ready` says no, and
    what is here goes on to its end.

    It is what SIGTERM begins, without the end: the process stays, and `undrain` has it take requests again.

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
    """Have a gateway that drains take requests again.

    One that a controller was told to drain stays so: `nightside ctl gateways undrain`.

    Exit codes: 0 it takes requests, 1 it does not.
    """
    answer = admin.ask("POST", "/admin/undrain", {})
    if answer.status != 200:
        raise AdminFault(answer.fault)
    told: dict[str, Any] = msgspec.json.decode(answer.body)
    if told["drained_by_controller"]:
        raise AdminFault("it is drained at the controller: nightside ctl gateways undrain GATEWAY")
    click.echo("undrained: it takes requests again")
