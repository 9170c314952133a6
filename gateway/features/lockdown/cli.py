"""`nightside gateway lockdown`: stops all forwarding of a running gateway, or allows it again."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from mesh.admin_client import Admin, AdminFault, admin_options


@click.command()
@admin_options
@click.option("--release", is_flag=True, help="Allow forwarding again.")
@click.option("--cut", is_flag=True, help="End streams between gateways as well.")
@click.option(
    "--reason", default="", metavar="TEXT", help="Set the reason that the log and `nightside gateway status` show."
)
def lockdown(admin: Admin, *, release: bool, cut: bool, reason: str) -> None:
    """Stop all forwarding of a gateway at once, in both directions; local requests continue.

    It lasts until --release, and survives a restart if the region file names a state.folder.

    Exit codes: 0 in force and kept, 1 it is not in force, or would not outlive a restart.
    """
    if release and cut:
        raise click.UsageError("--release and --cut exclude each other")
    answer = admin.ask("POST", "/admin/lockdown", {"active": not release, "cut": cut, "reason": reason})
    if answer.status != 200:
        raise AdminFault(answer.fault)
    told: dict[str, Any] = msgspec.json.decode(answer.body)
    click.echo("released: requests may be forwarded again" if release else "locked down: nothing is forwarded")
    if not told["is_kept"]:
        raise AdminFault(f"this is in force now, but will be forgotten in a restart: {told['problem']}")
