"""Decisions of this gateway, for its own page and for a controller's page that asks for them. They name no tenant and
hold no text of a request.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gateway.app.observed_core import ObservedCore
from gateway.app.wording import headline, of_other_side, sentence
from gateway.core.vocabulary import ModelName, TargetKind
from gateway.records.decisions import ExplainedRequest, OtherSide
from mesh.control.codec import ANSWER_BYTES_MAX
from mesh.page.rows import DecisionMark, DecisionShown, SideShown

_TOLD_MAX = 20
"""Decisions told to a controller that asks for the latest."""
_MARKED_TOLD_MAX = 8
"""Decisions of each mark told beyond them."""
_MILLISECOND_NS = 1_000_000


def latest(observed: ObservedCore, count: int, marked_max: int) -> list[tuple[int, DecisionShown]]:
    """Requests that ended last, and of each mark up to `marked_max` before them, sorted by arrival with the newest
    first; each with its arrival by this gateway's clock, in ms. Requests refused at admission are among them."""
    found = observed.decisions.latest(count, observed.clock.now_ns(), marked_max) + observed.refusals.latest(marked_max)
    found.sort(key=lambda each: -each.arrived_ns)
    return [(each.arrived_ns // _MILLISECOND_NS, _row(_tellable(observed, each.request), each.marks)) for each in found]


def told(observed: ObservedCore, wanted: str) -> bytes:
    """Answer to a controller: about one request, or with an empty name the latest decisions."""
    observed.driver.tell_observers()
    if not wanted:
        return _bounded([each for _, each in latest(observed, _TOLD_MAX, _MARKED_TOLD_MAX)])
    found = observed.decisions.explain(wanted, observed.clock.now_ns()) or observed.refusals.explain(wanted)
    return b"" if found is None else _bounded(_side(_tellable(observed, found)))


def _tellable(observed: ObservedCore, request: ExplainedRequest) -> ExplainedRequest:
    """Request without the name of a model that no replica or peer serves, since that name is only a client's text."""
    return request if observed.serves(ModelName(request.model)) else replace(request, model="")


def _bounded(document: object) -> bytes:
    text = msgspec.json.encode(document)
    return text if len(text) <= ANSWER_BYTES_MAX else b""


def _side(request: ExplainedRequest) -> SideShown:
    record = msgspec.to_builtins(request)
    return SideShown(record, headline(request), sentence(request), of_other_side(OtherSide(request.gateway, request)))


def _row(request: ExplainedRequest, marks: list[DecisionMark]) -> DecisionShown:
    last = request.placements[-1] if request.placements else None
    is_forwarded = last is not None and last.kind == TargetKind.PEER
    return DecisionShown(
        gateway=request.gateway,
        request=request.request_id,
        age_ms=round(request.age_ms),
        model=request.model,
        origin=request.origin,
        outcome=request.outcome,
        region=request.ran_in or ("" if last is None else last.region),
        forwarded=is_forwarded,
        target=last.target if last is not None and is_forwarded else "",
        marks=marks,
        waited_ms=None if last is None else round(last.waited_ms, 1),
        first_token_ms=None if request.first_token_ms is None else round(request.first_token_ms, 1),
        words=sentence(request),
    )
