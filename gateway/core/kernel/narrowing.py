"""Intersection of residency policies of one region, of its gateways' or of its own with the controller's: only what all
of them allow.

The result never allows anything that one of them forbids. A gateway without a controller's policy does not use this
module.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.core.kernel.residency import (
    LoggingRule,
    ResidencyPolicy,
    TenantPolicy,
    both,
    closed_policy,
    processing_rule,
)
from gateway.core.vocabulary import Place, PlaceRule

_DIGEST_LENGTH_MAX = 64
"""Longest part of each digest in the combined one, which travels with every forward."""


def narrowed(local: ResidencyPolicy, other: ResidencyPolicy) -> ResidencyPolicy:
    """Policy under which a tenant's requests may go, and an origin's may come in, exactly where both policies allow
    it."""
    if other.place != local.place:
        return narrowed(local, closed_policy(local.place, _is_for_elsewhere(local.place, other)))
    closed_reason = local.closed_reason or _closed_by(other)
    return replace(_both(local, other, closed_reason), narrowed_by=_with(local.narrowed_by, other.digest))


def allowed_by_all(policies: Sequence[ResidencyPolicy]) -> ResidencyPolicy:
    """Policy of a region whose gateways report these, at least one and all of that region."""
    first, *others = policies
    for each in others:
        if each != first:
            first = _both(first, each, first.closed_reason or each.closed_reason)
    return first


def _both(local: ResidencyPolicy, other: ResidencyPolicy, closed_reason: str) -> ResidencyPolicy:
    return ResidencyPolicy(
        local.place,
        process=both(local.process, other.process),
        accept=PlaceRule() if closed_reason else both(local.accept, other.accept),
        tenants={
            tenant: TenantPolicy(both(processing_rule(local, tenant), processing_rule(other, tenant)))
            for tenant in (*local.tenants, *other.tenants)
        },
        logging=_shown_by_both(local.logging, other.logging),
        digest=_with(local.digest, other.digest),
        closed_reason=closed_reason,
        narrowed_by=local.narrowed_by,
        regions=local.regions,
    )


def _closed_by(other: ResidencyPolicy) -> str:
    return other.closed_reason and f"the controller's policy is closed: {other.closed_reason}"


def _is_for_elsewhere(place: Place, other: ResidencyPolicy) -> str:
    told, here = (f"{each.region} ({each.jurisdiction})" for each in (other.place, place))
    return f"it is for {told}, and this region is {here}"


def _shown_by_both(local: LoggingRule, other: LoggingRule) -> LoggingRule:
    return LoggingRule(
        tenant=local.tenant and other.tenant,
        client_address=local.client_address and other.client_address,
        session_key=local.session_key and other.session_key,
    )


def _with(digest: str, other: str) -> str:
    """Combined digest, by which an operator finds both files."""
    known = digest.split("+") if digest else []
    added = [each for each in other[:_DIGEST_LENGTH_MAX].split("+") if each not in known]
    return "+".join([*known, *added])
