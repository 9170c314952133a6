"""Clients that show tokens of an issuer: which ones are believed, and what their claims come to here.

What a token may do is what this section says for it; a claim only picks among that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gateway.config.names import Model
from gateway.config.places import ProcessSection
from gateway.core.vocabulary import ServiceClass
from gateway.ground.faults import Fault
from gateway.ground.settings import Section
from gateway.ground.tokens.config import ClaimText, IssuerConfig, issuer_faults
from gateway.ground.values import Id

_NAMES_MAX = 1000
_MODELS_MAX = 1000
_COUNT_MAX = 10**12
_SUBJECTS_MAX = 20_000

_Count = Annotated[int, Field(strict=True, ge=1, le=_COUNT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceConfig:
    """One name out of ours: always the same, or as a claim says."""

    value: Id | None = None
    claim: ClaimText | None = None
    """Dots lead into objects: `org.id`."""
    map: Annotated[Mapping[ClaimText, Id], Field(max_length=_NAMES_MAX)] = field(default_factory=dict)
    """From what the claim says to the name; of a list, the first here that is in it. Empty: the claim says the name."""
    default: Id | None = None
    """Where the claim is missing or says nothing of ours. None: such a token is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What the holder of a token may use, as a key has it."""

    concurrency: _Count | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    tokens_per_day: _Count | None = None
    tokens_per_month: _Count | None = None
    models: Annotated[tuple[Model, ...], Field(min_length=1, max_length=_MODELS_MAX)] | None = None
    service_class: ServiceClass | None = None
    """Of requests that name none, and the best that they may name."""
    may_name_tenant: bool = False
    """With `trust_tenant_header`: for what stands in front, and passes on whose request it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIssuerConfig(IssuerConfig):
    """Of clients."""

    tenant: ChoiceConfig
    process: ChoiceConfig | None = None
    """Which of the `rules` narrows where its requests may be processed."""
    plan: ChoiceConfig | None = None
    """Which of the `plans` bounds what it may use. None: only the gateway's own limits do."""


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """Tokens beside keys: neither needs the other."""

    issuers: tuple[Annotated[ClientIssuerConfig, Section()], ...] = ()
    rules: Annotated[Mapping[Id, ProcessSection], Field(max_length=_NAMES_MAX)] = field(default_factory=dict)
    plans: Annotated[Mapping[Id, Annotated[PlanConfig, Section()]], Field(max_length=_NAMES_MAX)] = field(
        default_factory=dict
    )
    subject_secret_file: Path | None = None
    """Goes into the pseudonyms of those who show tokens, so that nobody without it can tell who is who. The same in
    every region."""
    subjects_max: int = _SUBJECTS_MAX
    """In a day, of all tenants together. Those above it are counted together by plan, and share what one may use."""
    subjects_per_tenant_max: int = 5_000


def oidc_faults(config: OidcConfig, *, insecure: bool, keeps_usage: bool) -> Iterator[Fault]:
    """Among keys each of which is well written. `keeps_usage`: what is used up outlives the process."""
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
