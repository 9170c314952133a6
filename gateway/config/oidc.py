"""OIDC tokens of clients: which issuers are accepted, and how claims map to tenant, residency rule and plan.

This section defines what a token may do; a claim only selects among its entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field
from pydantic import Field

from gateway.config.names import Model
from gateway.config.places import ProcessSection
from gateway.core.vocabulary import ServiceClass
from mesh.faults import Fault
from mesh.settings import Section
from mesh.tokens.config import ClaimText, IssuerConfig, issuer_faults
from mesh.values import Id

_NAMES_MAX = 1000
_MODELS_MAX = 1000
_COUNT_MAX = 10**12
_SUBJECTS_MAX = 20_000

_Count = Annotated[int, Field(strict=True, ge=1, le=_COUNT_MAX)]


class ChoiceConfig(Struct, frozen=True, kw_only=True):
    """Choice of one configured name: a fixed value, or selected by a claim."""

    value: Id | None = None
    claim: ClaimText | None = None
    """Claim's name; dots lead into objects: `org.id`."""
    map: Annotated[Mapping[ClaimText, Id], Field(max_length=_NAMES_MAX)] = field(default_factory=dict)
    """Names by claim value; for a list, the first entry here that it contains. Empty: the claim's value is the name."""
    default: Id | None = None
    """Name used where the claim is missing or not mapped. None: such a token is refused."""


class PlanConfig(Struct, frozen=True, kw_only=True):
    """Limits of a token's holder, as a key has them."""

    concurrency: _Count | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    tokens_per_day: _Count | None = None
    tokens_per_month: _Count | None = None
    models: Annotated[tuple[Model, ...], Field(min_length=1, max_length=_MODELS_MAX)] | None = None
    service_class: ServiceClass | None = None
    """Class of requests that name none, and the best that they may name."""
    may_name_tenant: bool = False
    """Accept the tenant of each request from a proxy in front (with `trust_tenant_header`)."""


class ClientIssuerConfig(IssuerConfig, frozen=True, kw_only=True):
    """Issuer of clients' tokens."""

    tenant: ChoiceConfig
    process: ChoiceConfig | None = None
    """Choice of one of the `rules`, which narrows where the holder's requests may be processed."""
    plan: ChoiceConfig | None = None
    """Choice of one of the `plans`, which limits the holder's use. None: only the gateway's own limits apply."""


class OidcConfig(Struct, frozen=True):
    """Tokens of issuers, accepted beside keys or without any."""

    issuers: tuple[Annotated[ClientIssuerConfig, Section()], ...] = ()
    rules: Annotated[Mapping[Id, ProcessSection], Field(max_length=_NAMES_MAX)] = field(default_factory=dict)
    plans: Annotated[Mapping[Id, Annotated[PlanConfig, Section()]], Field(max_length=_NAMES_MAX)] = field(
        default_factory=dict
    )
    subject_secret_file: Path | None = None
    """Secret for the pseudonyms of token holders, so that they cannot be identified without it. The same in every
    region."""
    subjects_max: int = _SUBJECTS_MAX
    """Holders counted separately in a day, of all tenants together. Further ones are counted together by plan, and
    share one holder's limits."""
    subjects_per_tenant_max: int = 5_000


def oidc_faults(config: OidcConfig, *, insecure: bool, keeps_usage: bool) -> Iterator[Fault]:
    """Faults between keys that are valid by themselves. `keeps_usage`: whether usage survives a restart."""
    yield from issuer_faults("oidc", config.issuers, insecure=insecure)
    for index, each in enumerate(config.issuers):
        path = f"oidc.issuers[{index}]"
        yield from _choice_faults(f"{path}.tenant", each.tenant)
        if each.process is not None:
            yield from _choice_faults(f"{path}.process", each.process, "oidc.rules", config.rules)
        if each.plan is not None:
            yield from _choice_faults(f"{path}.plan", each.plan, "oidc.plans", config.plans)
    for name, plan in config.plans.items():
        if not keeps_usage and (plan.tokens_per_day is not None or plan.tokens_per_month is not None):
            yield Fault(f"oidc.plans.{name}", "a budget has to survive restarts: it needs state.folder")


def _choice_faults(
    path: str, choice: ChoiceConfig, section: str = "", known: Mapping[str, object] | None = None
) -> Iterator[Fault]:
    if (choice.value is None) == (choice.claim is None):
        yield Fault(path, "takes a value or a claim, and not both")
    if choice.claim is None and (choice.map or choice.default is not None):
        yield Fault(path, "has a map or a default, and no claim that they would be for")
    if known is None:
        return
    for name in (choice.value, choice.default, *choice.map.values()):
        if name is not None and name not in known:
            yield Fault(path, f"{name!r} is none of {section}")
