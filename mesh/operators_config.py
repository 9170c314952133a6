"""Configuration of operators: which tokens and issuers an admin address accepts, and for which roles. It reads no
secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from mesh.faults import FileFault
from mesh.settings import Section
from mesh.tokens.config import ClaimText, IssuerConfig, issuer_faults
from mesh.values import Id

TOKENS_MAX = 256


class Role(StrEnum):
    """Permissions of an operator; each role includes those listed before it."""

    LOOK = "look"
    """Permission to see state, metrics, explanations and usage."""
    DRAIN = "drain"
    """Permission for commands that a command or a restart undoes: drains, the lockdown, a freeze."""
    CHANGE = "change"
    """Permission for everything else: keys, assignments, policies."""


class OperatorTokenConfig(Struct, frozen=True):
    """Operator token in a file."""

    name: Id
    """Name of the operator in logs and in the audit log."""
    role: Role
    """Role of the operator."""
    token_file: Path
    """File of the bearer token; it is read again when it changes."""


class OperatorIssuerConfig(IssuerConfig, frozen=True, kw_only=True):
    """Issuer of operators' tokens."""

    claim: ClaimText
    """Claim that holds an operator's groups or roles, such as `groups`; dots lead into objects, as in
    `realm_access.roles`."""
    roles: Mapping[Role, tuple[ClaimText, ...]]
    """Values of the claim for each role; the highest role with a matching value counts."""


class OperatorsConfig(Struct, frozen=True):
    """Operators accepted on the admin address besides the holder of `admin_token_file`."""

    tokens: tuple[Annotated[OperatorTokenConfig, Section()], ...] = ()
    """Bearer tokens of operators, each in a file of its own. Empty: none."""
    issuers: tuple[Annotated[OperatorIssuerConfig, Section()], ...] = ()
    """Issuers whose tokens are accepted from operators. Empty: none."""

    @property
    def are_any(self) -> bool:
        return bool(self.tokens or self.issuers)

    def secret_files(self) -> Iterator[Path]:
        return (each.token_file for each in self.tokens)


def operator_faults(config: OperatorsConfig, *, insecure: bool = False) -> Iterator[FileFault]:
    """Yield faults between keys that are each well formed."""
    if len(config.tokens) > TOKENS_MAX:
        yield FileFault("operators.tokens", f"holds more than {TOKENS_MAX}")
    names = [each.name for each in config.tokens]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield FileFault(f"operators.tokens[{index}].name", f"{name!r} is used twice")
    yield from issuer_faults("operators", config.issuers, insecure=insecure)
    for index, issuer in enumerate(config.issuers):
        if not any(issuer.roles.values()):
            yield FileFault(f"operators.issuers[{index}].roles", "is empty, so that no token would have a role")
