"""Maps a client's verified token to the ClientKey that a key would give, with only what the gateway's own files allow.

It keeps no personal names: the subject of a token is known by a pseudonym, and the number of pseudonyms is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gateway.config.oidc import ChoiceConfig, ClientIssuerConfig, OidcConfig, PlanConfig
from gateway.core.vocabulary import ModelName, TenantName
from gateway.request.callers import NO_BUDGET, Budget, ClientKey, KeyId, KeyLimits
from mesh.clock import Clock
from mesh.faults import ConfigError, KeyFaults
from mesh.tokens.claims import claim_values
from mesh.tokens.config import IssuerConfig
from mesh.tokens.words import TokenFault, TokenRefused
from mesh.values import ID_PATTERN, read_secret

FOR_CLIENTS = "clients"
OTHERS = "others"
_DAY_NS = 86_400_000_000_000
_PSEUDONYM_BYTES = 10
_PERSON = b"nightside-sub"
_NO_PLAN = PlanConfig()


class ClientGrants:
    """Client keys for the claims of tokens; `grant` is a parameter of Tokens."""

    def __init__(self, config: OidcConfig, clock: Clock) -> None:
        """Read the secret for pseudonyms. Raises ConfigError."""
        self._config = config
        self._subjects = Subjects(_secret_in(config), clock, config.subjects_max, config.subjects_per_tenant_max)

    def grant(self, issuer: IssuerConfig, claims: Mapping[str, Any]) -> ClientKey:
        """Client key for a token's claims. Raises TokenRefused."""
        assert isinstance(issuer, ClientIssuerConfig), "clients' tokens are of clients' issuers"
        tenant = TenantName(chosen(issuer.tenant, claims, "tenant"))
        plan, plan_name = _NO_PLAN, ""
        if issuer.plan is not None:
            plan_name = chosen(issuer.plan, claims, "plan")
            plan = _named(self._config.plans, plan_name, "plan")
        rule = None
        if issuer.process is not None:
            rule = _named(self._config.rules, chosen(issuer.process, claims, "process"), "process").rule()
        budget = Budget(plan.tokens_per_day, plan.tokens_per_month)
        return ClientKey(
            self._subjects.key_id(issuer.name, tenant, claims["sub"], plan_name),
            tenant,
            KeyLimits(plan.concurrency, plan.requests_per_minute, plan.tokens_per_minute),
            process=rule,
            models=None if plan.models is None else frozenset(map(ModelName, plan.models)),
            budget=NO_BUDGET if budget == NO_BUDGET else budget,
            may_name_tenant=plan.may_name_tenant,
            is_token=True,
            service_class=plan.service_class,
        )


class Subjects:
    """Pseudonyms of the subjects whose tokens were shown in the current day."""

    def __init__(self, secret: str, clock: Clock, count_max: int, per_tenant_max: int) -> None:
        self._key = hashlib.sha256(secret.encode()).digest()
        self._clock = clock
        self._count_max = count_max
        self._per_tenant_max = per_tenant_max
        self._day = -1
        self._count = 0
        self._known: dict[TenantName, set[KeyId]] = {}

    def __len__(self) -> int:
        return self._count

    def key_id(self, issuer: str, tenant: TenantName, subject: str, plan: str = "") -> KeyId:
        """Key id of a subject, equal at all gateways with the same secret. Subjects beyond a day's bounds share one id
        for each plan: with one id for all plans, requests of different plans would begin each other's limits anew."""
        key_id = KeyId(f"{issuer}-{self.pseudonym(issuer, subject)}")
        self._turn()
        known = (
            self._known.setdefault(tenant, set()) if self._count < self._count_max else self._known.get(tenant, set())
        )
        if key_id in known:
            return key_id
        if self._count >= self._count_max or len(known) >= self._per_tenant_max:
            return KeyId(f"{issuer}-{OTHERS}-{plan}" if plan else f"{issuer}-{OTHERS}")
        known.add(key_id)
        self._count += 1
        return key_id

    def pseudonym(self, issuer: str, subject: str) -> str:
        text = f"{issuer}\0{subject}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=_PSEUDONYM_BYTES, key=self._key, person=_PERSON).hexdigest()

    def _turn(self) -> None:
        day = self._clock.wall_ns() // _DAY_NS
        if day != self._day:
            self._day, self._count, self._known = day, 0, {}


def chosen(choice: ChoiceConfig, claims: Mapping[str, Any], what: str) -> str:
    """Name that the claims lead to. Raises TokenRefused, which says what the claim does not name."""
    if choice.value is not None:
        return choice.value
    assert choice.claim is not None, "the file was checked"
    said = claim_values(claims, choice.claim)
    if choice.map:
        found = next((name for text, name in choice.map.items() if text in said), None)
    else:
        found = said[0] if len(said) == 1 and ID_PATTERN.fullmatch(said[0]) else None
    if found is None and choice.default is None:
        raise TokenRefused(TokenFault.NOT_MAPPED, about=f"its {choice.claim} names no {what}")
    return found or choice.default or ""


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise TokenRefused(TokenFault.NOT_MAPPED, about=f"it names no {what} of ours")
    return known[name]


def _secret_in(config: OidcConfig) -> str:
    if config.subject_secret_file is None:
        return ""
    try:
        return read_secret(config.subject_secret_file, "oidc.subject_secret_file")
    except KeyFaults as fault:
        raise ConfigError(str(fault)) from fault
