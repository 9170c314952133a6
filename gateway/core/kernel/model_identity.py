"""Binding of requests to the identity of a model: a request that goes on after a failure stays with the revision,
quantization and chat template of the target that began its answer.

The module only binds profiles and notes mismatches; which targets a bound request may go to follows from its class.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.kernel.config import IdentityRule
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.requests import LegEnd, LegState, Phase, RequestState
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import ModelName, NeededIdentity, PeerSpec, ReplicaRole, RequestProfile

_OTHERS_NAMED_MAX = 4


def bound(core: GatewayState, request: RequestState, profile: RequestProfile, end: LegEnd) -> RequestProfile:
    """Profile of what is left of a request after the end of a leg, bound to the identity of the leg's target and to
    what the request was bound to before. Targets that are known to serve another identity are noted in the request's
    record."""
    needed = _needed_after(core, request, end.leg, end.event.identity)
    if needed is None:
        return profile
    others = _others(core, request, needed)
    if others and not request.record.identity_mismatch:
        named = ", ".join(others[:_OTHERS_NAMED_MAX])
        request.record.identity_mismatch = f"{end.leg.target} has {needed.name}, but {named}"
    return replace(profile, identity=needed)


def needed_elsewhere(core: GatewayState, request: RequestState, leg: LegState) -> NeededIdentity | None:
    """Identity that a request would be bound to if its leg ended now, before the target tells its own."""
    binds = request.phase is Phase.ANSWERING or (
        core.config.attempt.identity_rule_of(request.profile.model) is IdentityRule.SAME
    )
    return _needed_after(core, request, leg, "") if binds else needed_by(core, request.profile)


def needed_by(core: GatewayState, profile: RequestProfile) -> NeededIdentity | None:
    """Identity that a bound request needs by the rule in force here; a forward keeps its origin's rule if that is
    stricter."""
    needed = profile.identity
    if needed is None or not needed.takes_unknown:
        return needed
    is_strict = core.config.attempt.identity_rule_of(profile.model) is IdentityRule.SAME
    return NeededIdentity(needed.name, takes_unknown=False) if is_strict else needed


def identity_placed_by(request: RequestState, attempt: int) -> str:
    """Identity of the replica that an attempt was placed at, as known when it started; empty: not known, or it was
    placed at a peer. A disaggregated pool has that of the prefill worker."""
    spec = _first_leg(request, attempt).spec
    return "" if isinstance(spec, PeerSpec) else spec.identity_of(request.profile.model)


def _needed_after(core: GatewayState, request: RequestState, leg: LegState, told: str) -> NeededIdentity | None:
    """Identity that a request is bound to by the end of a leg; None: to none. `told`: identity that the target told."""
    held = request.profile.identity
    is_strict = core.config.attempt.identity_rule_of(request.profile.model) is IdentityRule.SAME
    is_strict |= held is not None and not held.takes_unknown
    name = (held.name if held is not None else "") or _identity_behind(core, request, leg, told)
    return NeededIdentity(name, takes_unknown=not is_strict) if name or is_strict else None


def _identity_behind(core: GatewayState, request: RequestState, leg: LegState, told_by_it: str) -> str:
    """Identity of the target that an attempt was placed at, as known when its first leg started; empty: not known."""
    spec = _first_leg(request, leg.attempt).spec
    if not isinstance(spec, PeerSpec):
        return identity_placed_by(request, leg.attempt)
    if told_by_it:
        return told_by_it
    peer = core.peers.get(spec.gateway_id)
    told = set() if peer is None else _identities_at(peer, request.profile.model)
    return told.pop() if len(told) == 1 else ""


def _first_leg(request: RequestState, attempt: int) -> LegState:
    return next(each for each in request.record.legs if each.attempt == attempt)


def _identities_at(peer: PeerState, model: ModelName) -> set[str]:
    return {capacity.identity for capacity in peer.served if capacity.model == model}


def _others(core: GatewayState, request: RequestState, needed: NeededIdentity) -> list[str]:
    """Targets that might serve the request but are known to have another identity, in words. An unknown identity is no
    evidence of another model, even where it is not taken."""
    if not needed.name:
        return []
    model, rule = request.profile.model, request.request_class.rule
    others: list[str] = []
    for state in core.replicas:
        spec = state.spec
        identity = spec.identity_of(model)
        serves = model in spec.models and spec.role is not ReplicaRole.DECODE and rule.allows(spec.place)
        if serves and identity and not needed.takes(identity):
            others.append(f"{state.target} has {identity}")
    for peer in core.peers:
        told = _identities_at(peer, model) if rule.allows(peer.spec.place) else set()
        known = told - {""}
        if known and not any(map(needed.takes, told)):
            others.append(f"{peer.target} has {min(known)}")
    return others
