"""`nightside gateway token`: checks a token as a gateway would. It asks the token's issuer, and prints no part of the
token but the claims that count.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import click
from msgspec.structs import replace

from gateway.app.identities import Identities
from gateway.config.reading import read_region_file
from gateway.config.sections import GatewayConfig
from gateway.request.callers import ClientKey
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.faults import ConfigError
from mesh.logs import make_logger
from mesh.operators import NotAnOperator
from mesh.tokens.counters import AT_START
from mesh.tokens.words import TokenRefused, looks_like_token


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--token-file",
    "source",
    type=click.File(),
    default="-",
    help="Read the token from this file instead of standard input.",
)
@click.option("--operator", is_flag=True, help="Validate it as an operator's token instead of a client's.")
def token(file: Path, source: TextIO, operator: bool) -> None:
    """Validate a token against the auth settings of the region file FILE.

    Exit codes: 0 it is taken, 1 it is not, or its issuer cannot be asked.
    """
    shown = source.read().strip()
    if not looks_like_token(shown):
        raise click.ClickException("this is no signed JSON web token: it would be looked up as a key")
    try:
        config = read_region_file(file).as_config()
        told = asyncio.run(_told(config, shown, operator=operator))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    except TokenRefused as refused:
        of = f"{refused.issuer}: " if refused.issuer else ""
        raise click.ClickException(f"{of}{refused.words} ({refused.reason})") from refused
    except NotAnOperator as unknown:
        raise click.ClickException(str(unknown)) from unknown
    click.echo(json.dumps(told, indent=2))


async def _told(config: GatewayConfig, shown: str, *, operator: bool) -> Mapping[str, object]:
    """Check the token, writing no file: issuers' keys that the gateway keeps stay as they are, and its own."""
    config = replace(config, state=replace(config.state, folder=None))
    identities = Identities(config, Clock(), make_logger(LoggingConfig(), config.gateway_id, io.StringIO()))
    for each in identities.issuers:
        await each.fetch(AT_START)
        if not each.is_usable:
            click.echo(f"{each.config.name}: {each.describe()['fault']}", err=True)
    if operator:
        known = await identities.operators.identify(shown)
        return {"operator": known.name, "role": known.role}
    if identities.client_tokens is None:
        raise ConfigError("oidc.issuers is empty: no token of a client is taken")
    return _in_words(identities.client_tokens.check(shown))


def _in_words(key: ClientKey) -> Mapping[str, object]:
    limits, budget, process = key.limits, key.budget, key.process
    told = {
        "tenant": key.tenant,
        "booked_as": key.key_id,
        "concurrency": limits.concurrency_max,
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "tokens_per_day": budget.tokens_per_day,
        "tokens_per_month": budget.tokens_per_month,
        "models": None if key.models is None else sorted(key.models),
        "process": None
        if process is None
        else {
            "jurisdictions": sorted(process.jurisdictions),
            "regions": sorted(process.regions),
            "denied_regions": sorted(process.denied_regions),
        },
        "service_class": key.service_class,
        "may_name_tenant": key.may_name_tenant,
    }
    return {name: each for name, each in told.items() if each is not None}
