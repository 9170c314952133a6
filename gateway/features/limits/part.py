"""Tenants' limits, outside the core: their series, the tokens that requests have used, and what is left for clients to
read."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.registry import Collector

from gateway.core.effects import EndRequest
from gateway.core.events import TokensSettled
from gateway.core.features.limits.feature import limits_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.limits_config import Room
from gateway.core.vocabulary import RequestProfile, TenantName
from gateway.features.limits.metrics import LimitLevels
from gateway.features.part import Part, Surroundings, TenantLabel
from gateway.request.legs import RequestSummary
from gateway.request.usage import tokens_used


class LimitsPart(Part):
    """Settles what limits have reserved for requests."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._limits = limits_of(surroundings.core)
        self._submit = surroundings.submit

    @staticmethod
    def levels(core: GatewayCore, tenant_label: TenantLabel, /) -> Iterable[Collector]:
        return (LimitLevels(limits_of(core), tenant_label),)

    def finished(self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, /) -> None:  # noqa: ARG002
        """Replace the tokens that were reserved for the request by those that it has used."""
        if self._limits.is_charged(profile.request_id):
            self._submit(TokensSettled(profile.request_id, tokens_used(profile, summary).total))

    def rooms(self, tenant: TenantName, now_ns: int, /) -> list[Room]:
        return self._limits.rooms(tenant, now_ns)
