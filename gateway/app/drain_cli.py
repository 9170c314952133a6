"""`nightside gateway drain`: has a running gateway take nothing new, and finish what it has."""

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

    It is what SIGTERM begins, without the end: the process stays, and takes requests again once it is started anew.

    Exit codes: 0 it drains, 1 it does not.
    """
    answer = admin.ask("POST", "/admin/drain", {})
    if answer.status != 200:
        raise AdminFault(answer.fault)
    told: dict[str, Any] = msgspec.json.decode(answer.body)
    click.echo(f"draining: {told['requests']} requests are left")
