"""What a file says of operators: who may ask at an admin address, and how much each may do. It reads no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from gateway.ground.faults import Fault
from gateway.ground.settings import Section
from gateway.ground.tokens.config import ClaimText, IssuerConfig, issuer_faults
from gateway.ground.values import Id

TOKENS_MAX = 256


class Role(StrEnum):
    """What an operator may do; each may do what those above it may."""

    LOOK = "look"
    """See state, metrics, explanations and usage."""
    DRAIN = "drain"
    """And order what is easily undone, by an order or a restart: drains, the lockdown, a freeze."""
    CHANGE = "change"
    """And everything else: keys, assignments, policies."""


@dataclass(frozen=True, slots=True)
class OperatorTokenConfig:
    """A token that lies in a file."""

    name: Id
    """Of whom or what has it, for logs."""
    role: Role
    token_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorIssuerConfig(IssuerConfig):
    """Of operators."""

    claim: ClaimText
    """Which says what they are, such as `groups` or `realm_access.roles`; with dots for what is in an object."""
    roles: Mapping[Role, tuple[ClaimText, ...]]
    """What it has to say for each; the most that any of it allows."""


@dataclass(frozen=True, slots=True)
class OperatorsConfig:
    """Who besides the holder of `admin_token_file` may ask at the admin address."""

    tokens: tuple[Annotated[OperatorTokenConfig, Section()], ...] = ()
    issuers: tuple[Annotated[OperatorIssuerConfig, Section()], ...] = ()

    @property
    def are_any(self) -> bool:
        return bool(self.tokens or self.issuers)

    def secret_files(self) -> Iterator[Path]:
        return (each.token_file for each in self.tokens)


def operator_faults(config: OperatorsConfig, *, insecure: bool = False) -> Iterator[Fault]:
    """Among keys each of which is well written."""
    if len(config.tokens) > TOKENS_MAX:
        yield Fault("operators.tokens", f"holds more than {TOKENS_MAX}")
    names = [each.name for each in config.tokens]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Fault(f"operators.tokens[{index}].name", f"{name!r} is used twice")
    yield from issuer_faults("operators", config.issuers, insecure=insecure)
    for index, issuer in enumerate(config.issuers):
        if not any(issuer.roles.values()):
            yield Fault(f"operators.issuers[{index}].roles", "is empty, so that nobody would be an operator")
