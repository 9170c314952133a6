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
from mesh.faults import FileFault
from mesh.settings import Section
from mesh.tokens.config import ClaimText, IssuerConfig, issuer_faults
from mesh.values import Id

_NAMES_MAX = 1000
_MODELS_MAX = 1000
_COUNT_MAX = 10**12
_SUBJECTS_MAX = 20_000

_Count = Annotated[int, Field(strict=True, ge=1, le=_COUNT_MAX)]


class ChoiceConfig(Struct, frozen=True, kw_only=True):
    """Choice of one configured name: a fixed value, or selected by a claim of the token."""

    value: Id | None = None
    """Fixed name, in place of a claim. None: `claim` selects it."""
    claim: ClaimText | None = None
    """Name of the claim that selects; dots lead into objects, as in `org.id`. None: `value` is used."""
    map: Annotated[Mapping[ClaimText, Id], Field(max_length=_NAMES_MAX)] = field(default_factory=dict)
    """Names by value of the claim; of a claim with a list, the first value here that the list contains. Empty: the
    value itself is the name."""
    default: Id | None = None
    """Name for tokens without the claim or with an unmapped value. None: such tokens are refused."""


class PlanConfig(Struct, frozen=True, kw_only=True):
    """Limits of each token holder, with the meaning that they have for keys."""

    concurrency: _Count | None = None
    """Requests in flight at once. None: not limited."""
    requests_per_minute: _Count | None = None
    """Requests per minute. None: not limited."""
    tokens_per_minute: _Count | None = None
    """Prompt and output tokens per minute. None: not limited."""
    tokens_per_day: _Count | None = None
    """Prompt and output tokens per day, which needs `state.folder`. None: no daily budget."""
    tokens_per_month: _Count | None = None
    """Prompt and output tokens per month, which needs `state.folder`. None: no monthly budget."""
    models: Annotated[tuple[Model, ...], Field(min_length=1, max_length=_MODELS_MAX)] | None = None
    """Models that the holder may use. None: every model."""
    service_class: ServiceClass | None = None
    """Service class of requests that name none, and the most urgent one that they may name. None: any class."""
    may_name_tenant: bool = False
    """Accept the tenant that a proxy names in a header, with `trust_tenant_header`."""


class ClientIssuerConfig(IssuerConfig, frozen=True, kw_only=True):
    """Issuer of clients' tokens."""

    tenant: ChoiceConfig
    """Choice of the tenant of the holder's requests."""
    process: ChoiceConfig | None = None
    """Choice of one of the `rules`, which narrows where the holder's requests may be processed. None: the residency
    policy alone applies."""
    plan: ChoiceConfig | None = None
    """Choice of one of the `plans`, which limits the holder's use. None: only the gateway's own limits apply."""


class OidcConfig(Struct, frozen=True):
    """OpenID Connect tokens of clients, accepted besides keys or in place of them."""

    issuers: tuple[Annotated[ClientIssuerConfig, Section()], ...] = ()
    """Issuers whose tokens are accepted from clients. Empty: none."""
    rules: Annotated[Mapping[Id, ProcessSection], Field(max_length=_NAMES_MAX)] = field(default_factory=dict)
    """Residency rules that `process` of an issuer selects among, by name."""
    plans: Annotated[Mapping[Id, Annotated[PlanConfig, Section()]], Field(max_length=_NAMES_MAX)] = field(
        default_factory=dict
    )
    """Plans that `plan` of an issuer selects among, by name."""
    subject_secret_file: Path | None = None
    """File of the secret from which pseudonyms of token holders are derived; the same in every region. None: pseudonyms
    can be recomputed from a known subject."""
    subjects_max: int = _SUBJECTS_MAX
    """Token holders counted separately per day, over all tenants; further ones of a plan are counted together and share
    the limits of one holder."""
    subjects_per_tenant_max: int = 5_000
    """Token holders of one tenant counted separately per day; further ones are counted together."""


def oidc_faults(config: OidcConfig, *, insecure: bool, keeps_usage: bool) -> Iterator[FileFault]:
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
            yield FileFault(f"oidc.plans.{name}", "a budget has to survive restarts: it needs state.folder")


def _choice_faults(
    path: str, choice: ChoiceConfig, section: str = "", known: Mapping[str, object] | None = None
) -> Iterator[FileFault]:
    if (choice.value is None) == (choice.claim is None):
        yield FileFault(path, "takes a value or a claim, and not both")
    if choice.claim is None and (choice.map or choice.default is not None):
        yield FileFault(path, "has a map or a default, and no claim that they would be for")
    if known is None:
        return
    for name in (choice.value, choice.default, *choice.map.values()):
        if name is not None and name not in known:
            yield FileFault(path, f"{name!r} is none of {section}")
