"""Maps a verified token to an operator, with the highest of the token's roles. It makes no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mesh.operators import NotAnOperator, Operator, Operators, Verify
from mesh.operators_config import OperatorIssuerConfig, OperatorsConfig, Role
from mesh.tokens.claims import claim_values
from mesh.tokens.config import IssuerConfig
from mesh.tokens.issuer import Issuer, IssuerDependencies
from mesh.tokens.tokens import Tokens
from mesh.tokens.words import TokenFault, TokenRefused, looks_like_token

FOR_OPERATORS = "operators"
_SHOWN_MAX = 128


def operator_of(issuer: IssuerConfig, claims: Mapping[str, Any]) -> Operator:
    """Operator of a verified token. Raises TokenRefused."""
    assert isinstance(issuer, OperatorIssuerConfig), "operators' tokens are of operators' issuers"
    said = claim_values(claims, issuer.claim)
    held = [role for role in Role if any(each in said for each in issuer.roles.get(role, ()))]
    if not held:
        raise TokenRefused(TokenFault.NOT_MAPPED, about=f"its {issuer.claim} has no role")
    return Operator(f"{issuer.name}:{_printable(claims['sub'])}", held[-1])


def make_operators(
    admin_token: str | None, config: OperatorsConfig, around: IssuerDependencies
) -> tuple[Operators, Sequence[Issuer]]:
    """Operators of a program, and the issuers that have to be run for them. Raises ConfigError."""
    issuers = around.issuers(FOR_OPERATORS, config.issuers)
    if not issuers:
        return Operators(admin_token, config), ()
    tokens = Tokens(FOR_OPERATORS, issuers, operator_of, clock=around.clock, counters=around.counters)
    return Operators(admin_token, config, _verify_with(tokens)), issuers


def _verify_with(tokens: Tokens[Operator]) -> Verify:
    async def verify(credential: str) -> Operator | None:
        if not looks_like_token(credential):
            return None
        try:
            return await tokens.identify(credential)
        except TokenRefused as refused:
            raise NotAnOperator(refused.words) from refused

    return verify


def _printable(subject: str) -> str:
    shown = "".join(each if each.isprintable() else "?" for each in subject[:_SHOWN_MAX])
    return f"{shown}…" if len(subject) > _SHOWN_MAX else shown
