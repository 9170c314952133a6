"""Clients and the rights of their keys: the contents of the keys file, in the form that the HTTP edge enforces.

This module reads no file, counts nothing, and holds no secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType

from msgspec import Struct, field

from gateway.core.vocabulary import ModelName, PlaceRule, ServiceClass, TenantName

KeyId = NewType("KeyId", str)


class KeyLimits(Struct, frozen=True):
    """Limits of one key; None where only the gateway's own limits apply."""

    concurrency_max: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together."""


class Budget(Struct, frozen=True):
    """Quota of a day or a month in UTC, over all gateways together; None where there is no limit."""

    tokens_per_day: int | None = None
    """Prompt and output tokens together."""
    tokens_per_month: int | None = None


NO_BUDGET = Budget()


class ClientKey(Struct, frozen=True):
    """Identity and rights of an authenticated credential."""

    key_id: KeyId
    tenant: TenantName
    limits: KeyLimits = field(default_factory=KeyLimits)
    process: PlaceRule | None = None
    """Residency rule that narrows where this tenant's requests may be processed."""
    models: frozenset[ModelName] | None = None
    """Models that the key may use; None: every model."""
    budget: Budget = NO_BUDGET
    may_name_tenant: bool = False
    """True if the key belongs to a proxy, which may name the tenant of a request that it passes on."""
    is_token: bool = False
    """True if an issuer's token stands for it, and no key of the keys file."""
    service_class: ServiceClass | None = None
    """Default and best service class of its requests; None: the key sets none."""

    def may_use(self, model: ModelName) -> bool:
        return self.models is None or model in self.models


KeyCheck = Callable[[str], ClientKey | None]
"""Finds the key of a credential, which is empty if the client sent none. It takes as long for a wrong credential as for
a right one."""
TenantBudget = Callable[[TenantName], Budget]
"""Returns the budget of all keys of a tenant together."""
