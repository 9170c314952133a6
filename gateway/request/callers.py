"""Who a client is and what its key lets it do: what the keys file says, in the form that the HTTP edge keeps to.

Nothing here reads a file, counts anything, or knows a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NewType

from gateway.core.vocabulary import ModelName, PlaceRule, ServiceClass, TenantName

KeyId = NewType("KeyId", str)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may cost us; None where it is bounded by the gateway's own limits alone."""

    concurrency_max: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output together."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used up in a day or a month of UTC, at all gateways together; None where there is no such bound."""

    tokens_per_day: int | None = None
    """Prompt and output together."""
    tokens_per_month: int | None = None


NO_BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class ClientKey:
    """What a credential has been found to stand for."""

    key_id: KeyId
    tenant: TenantName
    limits: KeyLimits = field(default_factory=KeyLimits)
    process: PlaceRule | None = None
    """Narrows where the policy lets this tenant's requests be processed."""
    models: frozenset[ModelName] | None = None
    """None: every model."""
    budget: Budget = NO_BUDGET
    may_name_tenant: bool = False
    """It is held by something in front of us, which may say whose request it passes on."""
    service_class: ServiceClass | None = None
    """Of its requests that name none, and the best that they may name; None: that is not for the key to say."""

    def may_use(self, model: ModelName) -> bool:
        return self.models is None or model in self.models


KeyCheck = Callable[[str], ClientKey | None]
"""From what a client presented, empty for nothing, to its key. It must take as long over a wrong one as a right one."""
TenantBudget = Callable[[TenantName], Budget]
"""What all keys of a tenant may use up together."""
