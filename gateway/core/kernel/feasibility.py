"""Targets that could ever serve a request, and the words for operators while it waits for them or where there are none.

A request waits only for targets that may come: a replica that is down or full, a peer that may return, the gateway that
has a replica of this one for now. A request that no known target could ever run is rejected at once, with the reason.
The module reads the fleet and changes nothing; only words for operators are made here, and a client is shown none about
policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import OverflowMode
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Hold, RequestState
from gateway.core.kernel.residency import Verdict, may_process, may_process_under
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    ModelName,
    Outcome,
    Place,
    RequestProfile,
    ResidencyStamp,
    ServiceClass,
    Standing,
)

_PLACES_NAMED_MAX = 3
_TARGETS_NAMED_MAX = 4
"""Targets of each kind named in one text."""
_OUT_OF_REACH = frozenset({Standing.UNHEALTHY, Standing.LOST})
"""Standings whose detail is added to the text."""

Refusal = tuple[Outcome, str]


def why_no_newcomer(core: GatewayState, profile: RequestProfile, request_class: RequestClass) -> Refusal | None:
    """Reason why no target could ever serve a client's new request; None while one could, if only later. Not for a
    request that refers to a stored response."""
    model = request_class.model
    is_known = model in core.replicas.groups.models or core.peers.serves(model)
    if not is_known:  # a client may send any name: none is remembered
        return None if core.is_awaited(model) else _does_not_exist(model)
    if core.placer.may_ever_serve(request_class):
        return None
    return (
        _only_handed_over(core, request_class)
        or _too_long(core, request_class)
        or _why_no_target(core, profile, request_class, None)
    )


def why_never_again(core: GatewayState, request: RequestState) -> Refusal | None:
    """Reason why no target could ever serve a request that waits or would wait again; None while one could."""
    request_class = request.request_class
    if core.placer.may_ever_serve(request_class, core.peers.mask_of(request.barred_at)):
        if request_class.pinned is None or request_class.pinned not in request.barred_at:
            return None
    elif core.forwarding_stop is not None and request_class.pinned is not None:
        return None
    if request.barred_at and request.is_too_long:
        return (
            Outcome.REJECTED_TOO_LONG,
            f"gateways that serve the model take no request of so many tokens: {request.last_failure}",
        )
    if request.barred_at and request_class.pinned is None and core.is_awaited(request_class.model):
        return Outcome.REJECTED_QUEUE_FULL, _ours_are_elsewhere(request_class.model)
    if request.barred_at:
        return (
            Outcome.REJECTED_RESIDENCY_PROCESSING,
            f"gateways that serve the model refused it by policy: {request.last_failure}",
        )
    if request.refusals >= max(core.config.attempt.refusals_max, 1):
        return Outcome.REJECTED_QUEUE_FULL, f"other gateways turned it away {request.refusals} times in a row"
    if request_class.pinned is not None:
        return Outcome.REJECTED_UNKNOWN_RESPONSE, "where the response was made is not within reach any more"
    stamp = None if request.origin_gateway_id is None else request.stamp
    return (
        _other_identity(core, request_class)
        or _only_handed_over(core, request_class)
        or _too_long(core, request_class)
        or _why_no_target(core, request.profile, request_class, stamp)
    )


def waits_for(core: GatewayState, request: RequestState) -> str:
    """Targets that a request waits for, and what stands against each at present."""
    held = request.held
    named = [*_replicas_awaited(core, request), *_peers_awaited(core, request)] if held is None else [_home(core, held)]
    otherwise = "the gateway that has our replicas now" if core.is_awaited(request.profile.model) else "no known target"
    words = (", ".join(named) or otherwise) + _its_turn(core, request)
    return words if core.forwarding_stop is None else f"{words}; {core.forwarding_stop.words}"


def _its_turn(core: GatewayState, request: RequestState) -> str:
    """Other things that a request waits for besides a target. No other tenant is named."""
    service_class = request.request_class.service_class
    told = "" if service_class is ServiceClass.INTERACTIVE else f"; as {service_class} it takes only what is idle"
    if request.request_class.is_patient:
        told += ", and may wait for what the placement policy prefers, as its batch has time to spare"
    return told + core.waiting.order.why_later(request)


# Reasons why no target could


def _why_no_target(
    core: GatewayState, profile: RequestProfile, request_class: RequestClass, stamp: ResidencyStamp | None
) -> Refusal | None:
    """Reason by residency, overflow or unknown model. `stamp`: for a forward, which is judged by its origin's rule.
    None: the end of a stop would let the request go, or another gateway has the model for now. Where policy forbids
    that gateway, clients may retry: this gateway's replicas may come back."""
    model, rule = request_class.model, request_class.rule
    forbidden: dict[Place, str] = {}
    for place in _places_serving(core, model):
        verdict = _judge(core, profile, place, stamp)
        if not verdict.allowed:
            forbidden[place] = verdict.why
    for slot in slots_of(core.replicas.groups.closed_to(model, rule, request_class.origin)):
        forbidden.setdefault(core.replicas.at(slot).spec.place, _closed_to(request_class.origin))
    allowed_peers = core.peers.eligible(model, rule)
    is_closed = bool(allowed_peers and core.policy.closed_reason)
    if allowed_peers and core.forwarding_stop is not None and not is_closed:
        return None
    if core.is_awaited(model):
        return (Outcome.REJECTED_QUEUE_FULL, _ours_are_elsewhere(model)) if is_closed or forbidden else None
    if is_closed:
        return Outcome.REJECTED_RESIDENCY_PROCESSING, f"closed: nothing is forwarded ({core.policy.closed_reason})"
    if forbidden:
        return Outcome.REJECTED_RESIDENCY_PROCESSING, _only_in_forbidden(model, forbidden)
    if allowed_peers and core.config.placement.overflow_of(model) is not OverflowMode.ON:
        return Outcome.REJECTED_UNKNOWN_MODEL, f"the model `{model}` is not served here, and nothing leaves the region"
    return _does_not_exist(model)


def _ours_are_elsewhere(model: ModelName) -> str:
    return f"this gateway's replicas of `{model}` are away for now"


def _only_handed_over(core: GatewayState, request_class: RequestClass) -> Refusal | None:
    """Reason to reject a call that must run whole, where the model is served by disaggregated pools alone."""
    anyhow = replace(request_class, connectors=ALL_CONNECTORS)
    if request_class.connectors == ALL_CONNECTORS or not core.placer.may_ever_serve(anyhow):
        return None
    whole = core.peers.eligible(request_class.model, request_class.rule, connectors=request_class.connectors)
    if core.forwarding_stop is not None and whole:
        return None  # the end of the stop would let it go
    told = f"where `{request_class.model}` is served, prompts are read and answers written by different engines, and"
    told += " this call needs one that does both"
    return Outcome.REJECTED_UNSUPPORTED, told


def _other_identity(core: GatewayState, request_class: RequestClass) -> Refusal | None:
    """Reason to end a request that only the identity of the model keeps from every target."""
    if request_class.identity is None or not core.placer.may_ever_serve(replace(request_class, identity=None)):
        return None
    model = request_class.model
    told = f"no other target of `{model}` has the same model, by its revision, quantization and chat template"
    return Outcome.FAILED_BEFORE_FIRST_BYTE, told


def _too_long(core: GatewayState, request_class: RequestClass) -> Refusal | None:
    """Reason to reject a request whose length alone keeps it from every target."""
    fit = request_class.fit
    if (
        fit is None
        or core.is_awaited(request_class.model)
        or not core.placer.may_ever_serve(replace(request_class, fit=None))
    ):
        return None
    if core.forwarding_stop is not None and core.peers.eligible(
        request_class.model, request_class.rule, connectors=request_class.connectors, fit=fit
    ):
        return None  # the end of the stop would let it go
    longest_tokens = core.longest_of(request_class)
    longest = "less" if longest_tokens is None else f"at most {longest_tokens} tokens"
    told = f"prompt and answer together may come to {fit.need_tokens} tokens or more, and `{request_class.model}` takes"
    return Outcome.REJECTED_TOO_LONG, f"{told} {longest} where it is served"


def _does_not_exist(model: ModelName) -> Refusal:
    return Outcome.REJECTED_UNKNOWN_MODEL, f"the model `{model}` does not exist"


def _judge(core: GatewayState, profile: RequestProfile, place: Place, stamp: ResidencyStamp | None) -> Verdict:
    if stamp is not None:
        return may_process_under(stamp, place)
    return may_process(core.policy, profile.tenant, place, profile.process)


def _closed_to(origin: Place | None) -> str:
    where = "elsewhere" if origin is None else f"in {origin.region}"
    return f"what was adopted from there takes nothing that arrived {where}"


def _places_serving(core: GatewayState, model: ModelName) -> dict[Place, None]:
    """Places that would see plaintext: those of replicas, and of the gateways before them."""
    places = {state.spec.place: None for state in core.replicas if model in state.spec.models}
    for peer in core.peers:
        for capacity in peer.served:
            if capacity.model == model:
                places[peer.spec.place] = None
                places[capacity.place] = None
    return places


def _only_in_forbidden(model: ModelName, forbidden: dict[Place, str]) -> str:
    few = [f"{place.region} ({why})" for place, why in forbidden.items()][:_PLACES_NAMED_MAX]
    more = len(forbidden) - len(few)
    return f"`{model}` is served only where it may not be processed: {', '.join(few)}{_and_more(more, 'region')}"


# Targets that a request waits for


def _home(core: GatewayState, hold: Hold) -> str:
    """Replica that a request is held for, and why it is not sent there yet, in words."""
    state = core.replicas.at(hold.slot)
    if hold.is_cold:
        why = "its cache is full of what is still wanted"
    elif not core.replicas.pushable >> hold.slot & 1:
        why = _in_words(state.standing, state.detail)
    else:
        why = "it reads what was sent before"
    return f"{state.target} (held for it: {why})"


def _replicas_awaited(core: GatewayState, request: RequestState) -> Iterator[str]:
    mask = core.placer.replicas_to_wait_for(request.request_class)
    if request.request_class.pinned is not None:
        mask &= core.replicas.mask_of((request.request_class.pinned,))
    for number, slot in enumerate(slots_of(mask)):
        if number == _TARGETS_NAMED_MAX:
            yield f"{mask.bit_count() - number} more replicas"
            return
        state = core.replicas.at(slot)
        failed = request.request_class.failed_replicas >> slot & 1
        standing = Standing.FAILED_BEFORE if failed else state.standing
        yield f"{state.target} ({_in_words(standing, state.detail)})"


def _peers_awaited(core: GatewayState, request: RequestState) -> Iterator[str]:
    mask = core.placer.peers_to_wait_for(request.request_class)
    if request.request_class.pinned is not None:
        mask &= core.peers.mask_of((request.request_class.pinned,))
    for number, slot in enumerate(slots_of(mask)):
        if number == _TARGETS_NAMED_MAX:
            yield f"{mask.bit_count() - number} more peers"
            return
        yield f"{core.peers.at(slot).target} ({_peer_in_words(core, request, core.peers.at(slot))})"


def _peer_in_words(core: GatewayState, request: RequestState, state: PeerState) -> str:
    request_class = request.request_class
    if request_class.failed_peers >> state.slot & 1:
        return _in_words(Standing.FAILED_BEFORE, "")
    return _in_words(core.peers.standing_of(state, request_class), state.detail)


def _in_words(standing: Standing, detail: str) -> str:
    word = standing.replace("_", " ")
    return f"{word}: {detail}" if detail and standing in _OUT_OF_REACH else word


def _and_more(count: int, what: str) -> str:
    if not count:
        return ""
    return f" and {count} more {what}{'s' if count > 1 else ''}"
