"""Checks a forward against its own body before it is used: both must agree as they would at the origin's HTTP API.

An origin is another party: its statements about a body decide where the body goes, and a false one could steer our
engines or reach another tenant's stored response. Faults are not corrected here but reported to the origin.
"""

from __future__ import annotations

from gateway.core.response_key import response_key
from gateway.core.vocabulary import RequestProfile
from gateway.request.bodies import Body, BodyFault, read_body
from gateway.request.engine_api import ENGINE_HEADERS, POSTED_PATHS, REQUEST_ID_HEADER
from gateway.request.legs import Headers, OutboundRequest
from mesh.wire import WireError

_HEADERS = frozenset({*ENGINE_HEADERS, REQUEST_ID_HEADER})


def check_forward(request: OutboundRequest) -> Body | None:
    """Check a forward and return its body; None for a call that has none. Raises WireError for a request that no
    gateway may forward."""
    _check_headers(request.headers, request.profile)
    if request.path not in POSTED_PATHS:
        _require(request.profile.is_control, "a call about a stored response is not marked as one")
        _require(not request.body, "a call about a stored response has a body")
        _require(not request.stores_response, "a call about a stored response stores none")
        return None
    try:
        body = read_body(request.path, request.body, passes_priority=True)
    except BodyFault as fault:
        raise WireError(f"the body is not one that a gateway lets in: {fault.kind}: {fault.detail}") from fault
    _check_profile(request, body)
    return body


def _check_headers(headers: Headers, profile: RequestProfile) -> None:
    names = [name for name, _ in headers]
    for name, value in headers:
        _require(name in _HEADERS, f"header {name.lower()} is not for engines")
        _require(name != REQUEST_ID_HEADER or value == profile.request_id, "headers name another request")
    _require(len(set(names)) == len(names), "a header is named twice")


def _check_profile(request: OutboundRequest, body: Body) -> None:
    """Check that profile and body agree. The response that a body follows decides where it may run, like the path of a
    call about a stored response."""
    profile, followed = request.profile, body.followed_response_id
    key = "" if followed is None else response_key(profile.tenant, followed)
    _require(not profile.is_control, "a request for an engine is marked as a call about a stored response")
    _require(profile.model == body.model, "profile and body name different models")
    _require(profile.follows == key, "follows is not the response that the body names")
    _require(profile.stream == body.streams, "profile and body disagree about streaming")
    _require(not body.nvext, "the body has nvext, which no engine is sent")
    _require(request.stores_response == body.stores_response, "forward and body disagree about storing the response")


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise WireError(fault)
