"""`nightside keys`: adds, lists, rotates and removes client keys. A secret is shown once and stored nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gateway.core.vocabulary import ServiceClass
from gateway.security.keys import read_keys_file
from gateway.security.keys_editing import (
    Minted,
    add_key,
    change_key,
    remove_key,
    rotate_key,
    set_tenant_budget,
    shown,
)
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.values import parse_duration_ns


@click.group()
def keys() -> None:
    """Manage the API keys of a gateway's clients. Gateways reload a changed FILE by themselves."""


_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_key_id = click.argument("key_id")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_per_day = click.option("--tokens-per-day", type=int, help="Limit the tokens per day (UTC) across all gateways.")
_per_month = click.option("--tokens-per-month", type=int, help="Limit the tokens per month (UTC) across all gateways.")


@keys.command()
@_file
@click.option("--id", "key_id", required=True, help="Set the key's id, which is part of the key.")
@click.option("--tenant", required=True, help="Set the tenant of the key.")
@click.option("--concurrency", type=int, help="Limit the concurrent requests.")
@click.option("--requests-per-minute", type=int, help="Limit the requests per minute.")
@click.option("--tokens-per-minute", type=int, help="Limit the tokens per minute, of prompts and answers together.")
@_per_day
@_per_month
@click.option("--model", "models", multiple=True, help="Allow this model only; repeatable.")
@click.option(
    "--jurisdiction", "jurisdictions", multiple=True, help="Process requests only in this jurisdiction; repeatable."
)
@click.option("--region", "regions", multiple=True, help="Process requests only in this region; repeatable.")
@click.option(
    "--deny-region", "denied_regions", multiple=True, help="Never process requests in this region; repeatable."
)
@click.option(
    "--may-name-tenant",
    is_flag=True,
    default=None,
    help="Allow the key to name another tenant in x-nightside-tenant, if trust_tenant_header is on.",
)
@click.option(
    "--service-class",
    type=click.Choice([each.value for each in ServiceClass]),
    help="Set the default service class of requests, which is also the highest allowed.",
)
@click.option("--expires", help="Set the expiry, as 2027-01-31 or 2027-01-31T12:00:00Z.")
@_as_json
def add(file: Path, key_id: str, as_json: bool, **options: Any) -> None:
    """Add a new key to FILE and print it; it cannot be shown again."""
    with _complaints():
        minted = add_key(file, key_id, _entry_options(**options), Clock().wall_ns(), may_be_missing=True)
    _tell(key_id, minted, as_json=as_json)


@keys.command()
@_file
@_key_id
@click.option(
    "--keep",
    default="7d",
    show_default=True,
    help="Accept the previous secret for this long, as 12h or 7d; 0 refuses it at once.",
)
@_as_json
def rotate(file: Path, key_id: str, keep: str, as_json: bool) -> None:
    """Give the key KEY_ID in FILE a new secret, and print it. The previous secret is accepted for a while longer.

    A key has two secrets at most: one that was kept from an earlier rotation is refused from then on.
    """
    try:
        keep_ns = 0 if keep == "0" else parse_duration_ns(keep)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--keep") from error
    with _complaints():
        minted = rotate_key(file, key_id, keep_ns, Clock().wall_ns())
    _tell(key_id, minted, as_json=as_json)


@keys.command(name="list")
@_file
@_as_json
def list_keys(file: Path, as_json: bool) -> None:
    """Show the keys in FILE, without their hashes."""
    with _complaints():
        content = read_keys_file(file)
    entries = [shown(entry) for entry in content.keys]
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    for entry in entries:
        rest = " ".join(f"{name}={_in_words(value)}" for name, value in entry.items() if name not in ("id", "tenant"))
        click.echo(f"{entry['id']}  tenant={entry['tenant']}  {rest}".rstrip())
    for tenant in content.tenants:
        told = tenant.model_dump(exclude={"id"}, exclude_none=True)
        click.echo(f"(tenant {tenant.id})  {' '.join(f'{name}={value}' for name, value in told.items())}".rstrip())


@keys.command()
@_file
@_key_id
def disable(file: Path, key_id: str) -> None:
    """Disable the key KEY_ID in FILE without deleting its entry."""
    with _complaints():
        change_key(file, key_id, {"disabled": True}, Clock().wall_ns())


@keys.command()
@_file
@_key_id
def enable(file: Path, key_id: str) -> None:
    """Accept the disabled key KEY_ID in FILE again, with its secret as it was."""
    with _complaints():
        change_key(file, key_id, {"disabled": None}, Clock().wall_ns())


_NO_LIMIT = "none"


def _limit(text: str) -> int | str:
    """Read a limit: a number, or `none`."""
    if text == _NO_LIMIT:
        return _NO_LIMIT
    try:
        return int(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither a whole number nor `{_NO_LIMIT}`") from error


@keys.command()
@_file
@_key_id
@click.option("--concurrency", type=_limit, metavar="NUMBER|none", help="Limit the concurrent requests.")
@click.option("--requests-per-minute", type=_limit, metavar="NUMBER|none", help="Limit the requests per minute.")
@click.option(
    "--tokens-per-minute",
    type=_limit,
    metavar="NUMBER|none",
    help="Limit the tokens per minute, of prompts and answers together.",
)
@click.option(
    "--tokens-per-day", type=_limit, metavar="NUMBER|none", help="Limit the tokens per day (UTC) across all gateways."
)
@click.option(
    "--tokens-per-month",
    type=_limit,
    metavar="NUMBER|none",
    help="Limit the tokens per month (UTC) across all gateways.",
)
def change(file: Path, key_id: str, **limits: int | str | None) -> None:
    """Change limits of the key KEY_ID in FILE; `none` removes one. Its other limits and its secret stay."""
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        raise click.UsageError("name a limit to change")
    with _complaints():
        changes = {name: None if limit == _NO_LIMIT else limit for name, limit in given.items()}
        change_key(file, key_id, changes, Clock().wall_ns())


@keys.command()
@_file
@_key_id
def remove(file: Path, key_id: str) -> None:
    """Remove the key KEY_ID from FILE."""
    with _complaints():
        remove_key(file, key_id)


@keys.command()
@_file
@click.argument("tenant")
@_per_day
@_per_month
def tenant(file: Path, tenant: str, **budget: int | None) -> None:
    """Set in FILE the token budget that all keys of TENANT share; without a number, they share none."""
    with _complaints():
        set_tenant_budget(file, tenant, budget)


def _tell(key_id: str, minted: Minted, *, as_json: bool) -> None:
    until = None if minted.old_until is None else minted.old_until.isoformat().replace("+00:00", "Z")
    if as_json:
        told = {"id": key_id, "key": minted.key, "old_until": until}
        click.echo(json.dumps({name: value for name, value in told.items() if value is not None}))
        return
    click.echo(minted.key)
    if until is not None:
        click.echo(f"the previous secret is accepted until {until}", err=True)


def _entry_options(**options: Any) -> dict[str, Any]:
    """Options that were given, in the form of a file's entry."""
    places = {name: list(options.pop(name)) for name in ("jurisdictions", "regions", "denied_regions")}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    if any(places.values()):
        given["process"] = {name: value for name, value in places.items() if value}
    return {name: value for name, value in given.items() if value not in (None, [])}


def _in_words(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ";".join(f"{name}:{_in_words(each)}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _complaints() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
