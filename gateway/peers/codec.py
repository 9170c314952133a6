"""Converts between protobuf messages and the mesh's own values. No value from the wire is used unchecked.

A peer is another party: lengths, words and numbers are bounded before they reach the core, and a message that breaks a
bound raises WireError, which ends that call and nothing else. A peer may also be newer: an unknown word is not the
peer's fault, and is read as `peer.proto` says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from gateway.config.names import PROMPT_BLOCKS_MAX, is_model_identity
from gateway.core.block_sizes import EVEN_BLOCKS, bytes_in
from gateway.core.kernel.effects import EndRequest, StartLeg
from gateway.core.kernel.events import ForwardArrived
from gateway.core.kernel.forwarding import UNKNOWN_REFUSAL
from gateway.core.response_key import response_key
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    HINTED_PRIORITY_MAX,
    HINTED_TOKENS_MAX,
    MODEL_NAME_LENGTH_MAX,
    NO_HINTS,
    PREFIX_HASH_BYTES,
    Connector,
    ControlVersion,
    GatewayId,
    Hints,
    Hops,
    Jurisdiction,
    LegRole,
    LoadReport,
    ModelCapacity,
    ModelName,
    ModelQueue,
    NeededIdentity,
    Notes,
    Outcome,
    Place,
    RefusalReason,
    RegionName,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    ServiceClass,
    TenantName,
    TenantUse,
)
from gateway.records.decisions import (
    ExplainedCosts,
    ExplainedPlacement,
    ExplainedRequest,
)
from gateway.records.peer_usage import KINDS, BudgetUse
from gateway.request.engine_api import is_engine_call, stored_response_of
from gateway.request.header_values import from_bytes, from_text, has_control_character, to_bytes
from gateway.request.legs import Headers, LegHead, OutboundRequest, RanAt, RequestSummary
from mesh.control.codec import owners_to_pb, read_owners
from mesh.control.vocabulary import Ownership
from mesh.wire import (
    KEY_LENGTH_MAX,
    LIST_LENGTH_MAX,
    MICROSECOND_NS,
    TEXT_LENGTH_MAX,
    WireError,
    place_to_pb,
    read_gateway_id,
    read_id,
    read_key,
    read_place,
    read_pool_name,
    read_replica_id,
    read_rule,
    read_text,
    require,
    rule_to_pb,
)
from protos.mesh.v1 import peer_pb2 as pb

MILLISECOND_NS = 1_000_000

AGE_MAX_NS = 3600 * 1_000 * MILLISECOND_NS
DEADLINE_MAX_MS = 24 * 3600 * 1_000
HOPS_MAX = 8
"""Sanity bound for a message; the core decides how many hops are *allowed*."""
HEADERS_MAX = 64
HEADER_VALUE_LENGTH_MAX = 8192
LOAD_MAX = 10**9
"""Requests on the replicas of one group: as many as an engine may report."""
RELEASE_US_MAX = 10**12
PROMPT_BYTES_MAX = 2**32
BACKLOG_BYTES_MAX = PROMPT_BYTES_MAX * 2**20
FREE_TOKENS_MAX = 10**12
TOKENS_MAX = 10**12
"""Bound of the counts of tokens and requests of one request or one tenant."""
RESUMES_MAX = 1000
"""Resumes of one request; far above any sensible configuration."""
PLACEMENTS_MAX = 64
"""Placements of one request, and targets considered for each, when a decision is explained to a peer."""
FIGURES_MAX = 16
"""Figures about one target beside its score."""
EXPLAINED_BYTES_MAX = 4 * 2**20
_EXPLAINED = msgspec.json.Decoder(ExplainedRequest)

RAN_AT_HEADER = "x-nightside-ran-at"
"""Header that carries `replica;region;jurisdiction` with a response head between gateways, so that the client can be
told before the body."""

BUDGET_TOKENS_MAX = 10**15
"""Tokens that a budget may have used in a month."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_FORBIDDEN_HEADERS = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "keep-alive",
        "proxy-authorization",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that frame a connection or prove an identity belong to one hop and are never forwarded."""

_CONNECTORS_TOLD = {each.value: each for each in Connector}
_SERVICE_CLASSES = {each.value: each for each in ServiceClass}
_BODILESS = frozenset({204, 205, 304})
"""Statuses that have no body: a client would take the bytes behind them for another response. No engine call answers
with one."""

_RESUME = "resume"
"""Name of the note on resumptions, which has fields of its own on the wire."""
_UNUSED = (0, 0)

_Word = TypeVar("_Word", Outcome, RefusalReason)


class ArrivedForward(Struct, frozen=True):
    event: ForwardArrived
    request: OutboundRequest


class EndedForward(Struct, frozen=True):
    """Last message of a forward: its outcome at the peer, and where it ran."""

    outcome: Outcome | None
    """Outcome at the peer; None if it is a word that this version does not know. The detail then quotes the word."""
    detail: str
    ran_at: RanAt | None
    prompt_tokens: int | None
    output_tokens: int | None
    is_final: bool = False
    """No other target must append to the answer after this failure."""
    notes: Notes = {}
    """Counts that features of the peer report."""


# Heartbeats


def subscribe_request(gateway_id: GatewayId, place: Place) -> pb.SubscribeRequest:
    return pb.SubscribeRequest(gateway_id=gateway_id, place=place_to_pb(place), takes_signs_of_life=True)


def read_subscribe_request(message: pb.SubscribeRequest) -> tuple[GatewayId, Place]:
    return read_gateway_id(message.gateway_id, "gateway_id"), read_place(message.place, "place")


def load_to_pb(report: LoadReport, age_ns: int) -> pb.SubscribeResponse:
    return pb.SubscribeResponse(
        gateway_id=report.gateway_id,
        place=place_to_pb(report.place),
        sequence=report.sequence,
        age_us=age_ns // MICROSECOND_NS,
        accepting=report.accepting,
        assignment_version=report.assignment_version,
        policy_digest=report.policy_digest,
        capacities=[
            pb.ModelCapacity(
                model=each.model,
                pool=each.pool,
                place=place_to_pb(each.place),
                replicas=each.replicas,
                available=each.available,
                load=min(each.load, LOAD_MAX),
                backlog_bytes=min(each.backlog_bytes, BACKLOG_BYTES_MAX),
                free_tokens=None if each.free_tokens is None else min(each.free_tokens, FREE_TOKENS_MAX),
                connector=each.connector or "",
                context_tokens_max=min(each.context_tokens_max, TOKENS_MAX),
                threshold_tokens=min(each.threshold_tokens, TOKENS_MAX),
                room=max(-LOAD_MAX, min(each.room, LOAD_MAX)),
                release_us=min(each.release_ns // MICROSECOND_NS, RELEASE_US_MAX),
                identity=each.identity,
                yielding=min(each.yielding, LOAD_MAX),
                spare=each.spare,
            )
            for each in report.capacities
        ],
        queues=[
            pb.ModelQueue(model=each.model, length=each.length, pool=each.pool or "", appending=each.appending)
            for each in report.queues
        ],
        control_term=report.control.term,
        control_version=report.control.version,
        tenant_uses=[_use_to_pb(each) for each in report.uses],
    )


def read_load(message: pb.SubscribeResponse) -> tuple[LoadReport, int]:
    """The report, and its age in nanoseconds when it was sent."""
    age_ns = message.age_us * MICROSECOND_NS
    require(age_ns <= AGE_MAX_NS, "age_us is over an hour")
    require(len(message.capacities) <= LIST_LENGTH_MAX, "too many capacities")
    require(len(message.queues) <= LIST_LENGTH_MAX, "too many queues")
    require(len(message.tenant_uses) <= LIST_LENGTH_MAX, "too many tenants")
    report = LoadReport(
        gateway_id=read_gateway_id(message.gateway_id, "gateway_id"),
        place=read_place(message.place, "place"),
        sequence=message.sequence,
        accepting=message.accepting,
        assignment_version=message.assignment_version,
        policy_digest=read_text(message.policy_digest, "policy_digest", KEY_LENGTH_MAX),
        capacities=tuple(_capacity(each) for each in message.capacities if _is_of_use(each)),
        queues=tuple(_queue(each) for each in message.queues),
        control=ControlVersion(message.control_term, message.control_version),
        uses=tuple(_use(each) for each in message.tenant_uses),
    )
    return report, age_ns


def write_budget_uses(message: pb.SubscribeResponse, uses: Iterable[BudgetUse]) -> None:
    message.budget_uses.extend(
        [
            pb.BudgetUse(
                kind=each.name[0],
                name=each.name[1],
                day=each.day,
                tokens_in_day=each.tokens_in_day,
                tokens_in_month=each.tokens_in_month,
                set_aside=each.set_aside,
            )
            for each in uses
        ]
    )


def read_budget_uses(message: pb.SubscribeResponse) -> list[BudgetUse]:
    """Budget uses of the peer. Entries of a kind other than key or tenant come from a newer gateway and are skipped."""
    require(len(message.budget_uses) <= LIST_LENGTH_MAX, "too many budgets")
    return [_budget_use(each) for each in message.budget_uses if each.kind in KINDS]


def _budget_use(message: pb.BudgetUse) -> BudgetUse:
    require(_DAY.fullmatch(message.day) is not None, "the day of a budget is no day")
    numbers = (message.tokens_in_day, message.tokens_in_month, message.set_aside)
    require(max(numbers) <= BUDGET_TOKENS_MAX, "no budget is so large")
    return BudgetUse((message.kind, read_key(message.name, "budget")), message.day, *numbers)


def _use_to_pb(use: TenantUse) -> pb.TenantUse:
    return pb.TenantUse(
        tenant=use.tenant,
        running=min(use.running, TOKENS_MAX),
        demand=min(use.demand, TOKENS_MAX),
        requests_per_minute=min(use.requests_per_minute, TOKENS_MAX),
        tokens_per_minute=min(use.tokens_per_minute, TOKENS_MAX),
    )


def _use(message: pb.TenantUse) -> TenantUse:
    numbers = (message.running, message.demand, message.requests_per_minute, message.tokens_per_minute)
    require(max(numbers) <= TOKENS_MAX, "no tenant asks for so much")
    return TenantUse(TenantName(read_key(message.tenant, "tenant")), *numbers)


def _queue(message: pb.ModelQueue) -> ModelQueue:
    pool = read_pool_name(message.pool, "pool") if message.pool else None
    return ModelQueue(_model(message.model), message.length, pool, message.appending)


def _is_of_use(message: pb.ModelCapacity) -> bool:
    """True if the capacity can be used: a pool with a connector unknown here cannot take a hand-off of ours."""
    return not message.connector or message.connector in _CONNECTORS_TOLD


def _capacity(message: pb.ModelCapacity) -> ModelCapacity:
    require(message.available <= message.replicas, "more replicas available than there are")
    require(message.load <= LOAD_MAX, "the load is no number of requests")
    require(message.backlog_bytes <= BACKLOG_BYTES_MAX, "the backlog is larger than all that can be asked at once")
    require(message.free_tokens <= FREE_TOKENS_MAX, "no cache has so much room")
    require(message.context_tokens_max <= TOKENS_MAX, "no engine has such a context")
    require(message.threshold_tokens <= TOKENS_MAX, "no request comes to such a threshold")
    require(abs(message.room) <= LOAD_MAX, "the room is no number of requests")
    require(message.release_us <= RELEASE_US_MAX, "no request takes so long")
    require(message.yielding <= message.load, "more requests yield than there are")
    require(message.spare <= message.replicas, "more replicas have room to spare than there are")
    room = message.room if message.HasField("room") else message.available
    return ModelCapacity(
        model=_model(message.model),
        pool=read_pool_name(message.pool, "pool"),
        place=read_place(message.place, "capacity place"),
        replicas=message.replicas,
        available=message.available,
        load=message.load,
        backlog_bytes=message.backlog_bytes,
        free_tokens=message.free_tokens if message.HasField("free_tokens") else None,
        connector=_CONNECTORS_TOLD.get(message.connector),
        context_tokens_max=message.context_tokens_max,
        threshold_tokens=message.threshold_tokens,
        room=room,
        release_ns=message.release_us * MICROSECOND_NS,
        identity=_identity(message.identity),
        yielding=message.yielding,
        spare=message.spare if message.HasField("spare") else message.available * (room > 0),
    )


# Forwards


def forward_to_pb(order: StartLeg, request: OutboundRequest, origin: GatewayId, now_ns: int) -> pb.ForwardRequest:
    assert order.hops is not None, "the core gives every forward its hops"
    assert order.stamp is not None, "the core gives every forward its stamp"
    assert order.role is LegRole.WHOLE, "the wire has no word for a part of a request"
    return pb.ForwardRequest(
        request_id=order.request_id,
        origin_gateway_id=origin,
        hops_in_region=order.hops.in_region,
        hops_cross_region=order.hops.cross_region,
        stamp=_stamp_to_pb(order.stamp),
        deadline_ms=max((order.deadline_ns - now_ns) // MILLISECOND_NS, 1),
        profile=_profile_to_pb(request.profile, order),
        path=request.path,
        headers=_headers_to_pb(request.headers),
        body=request.body,
        method=request.method,
        stores_response=request.stores_response,
        resumes_left=_resumes_to_pb(order.notes[_RESUME]) if _RESUME in order.notes else None,
        traced=request.is_traced,
    )


def read_forward(message: pb.ForwardRequest, now_ns: int) -> ArrivedForward:
    require(0 < message.deadline_ms <= DEADLINE_MAX_MS, "deadline_ms is out of bounds")
    profile = _profile(message)
    request = _outbound(message, profile)
    event = ForwardArrived(
        profile=profile,
        deadline_ns=now_ns + message.deadline_ms * MILLISECOND_NS,
        origin_gateway_id=read_gateway_id(message.origin_gateway_id, "origin_gateway_id"),
        hops=_hops(message),
        stamp=_stamp(message.stamp),
        notes=_resumes(message.resumes_left) if message.HasField("resumes_left") else {},
    )
    require(event.stamp.tenant == profile.tenant, "stamp and profile name different tenants")
    return ArrivedForward(event, request)


def _outbound(message: pb.ForwardRequest, profile: RequestProfile) -> OutboundRequest:
    """A call about a stored response must be routed by that very response; otherwise tenants could reach each
    other's."""
    method = message.method or "POST"
    require(is_engine_call(method, message.path), "path is not one that may be forwarded")
    response_id = stored_response_of(method, message.path)
    if response_id is not None:
        key = response_key(profile.tenant, response_id)
        require(profile.follows == key, "follows is not the response that the path names")
    return OutboundRequest(
        profile,
        message.path,
        _headers(message.headers),
        message.body,
        method,
        message.stores_response,
        is_traced=message.traced,
    )


def _hops(message: pb.ForwardRequest) -> Hops:
    hops = Hops(message.hops_in_region, message.hops_cross_region)
    require(0 < hops.in_region + hops.cross_region <= HOPS_MAX, "hops are out of bounds")
    return hops


def _profile_to_pb(profile: RequestProfile, order: StartLeg) -> pb.Profile:
    yields = order.yields and profile.service_class is not ServiceClass.INTERACTIVE
    return pb.Profile(
        model=profile.model,
        tenant=profile.tenant,
        prompt_bytes=profile.prompt_bytes,
        prefix=profile.prefix,
        prefix_block_bytes=profile.prefix_block_bytes,
        session_key=profile.session_key,
        stream=profile.stream,
        output_tokens_max=profile.output_tokens_max,
        follows=profile.follows,
        is_control=profile.is_control,
        connectors=sorted(profile.connectors),
        budget_tokens=min(order.budget_tokens, TOKENS_MAX),
        goes_on=profile.appends,
        service_class=profile.service_class if yields else "",
        sent_bytes=profile.sent_bytes,
        identity=None if order.identity is None else _needed_to_pb(order.identity),
        hints=None if profile.hints == NO_HINTS else _hints_to_pb(profile.hints),
        keeps_yielding=yields and profile.keeps_yielding,
    )


def _hints_to_pb(hints: Hints) -> pb.Hints:
    return pb.Hints(
        output_tokens=hints.output_tokens,
        priority=hints.priority,
        ends_session=hints.ends_session,
        comes_again=hints.comes_again,
    )


def _hints(message: pb.Hints) -> Hints:
    require(message.output_tokens <= HINTED_TOKENS_MAX, "hints.output_tokens is out of bounds")
    require(message.priority <= HINTED_PRIORITY_MAX, "hints.priority is out of bounds")
    hints = Hints(message.output_tokens, message.priority, message.ends_session, message.comes_again)
    return NO_HINTS if hints == NO_HINTS else hints


def _profile(message: pb.ForwardRequest) -> RequestProfile:
    profile = message.profile
    blocks, rest = divmod(len(profile.prefix), PREFIX_HASH_BYTES)
    require(rest == 0, f"prefix is not a whole number of {PREFIX_HASH_BYTES}-byte hashes")
    require(blocks <= PROMPT_BLOCKS_MAX, "prefix has too many blocks")
    require(profile.prefix_block_bytes > 0, "prefix_block_bytes is zero")
    prefix_bytes = bytes_in(blocks - (blocks > EVEN_BLOCKS), profile.prefix_block_bytes)  # the last may be cut short
    require(prefix_bytes <= profile.prompt_bytes, "prefix is longer than its prompt")
    require(profile.prompt_bytes <= PROMPT_BYTES_MAX, "prompt_bytes is out of bounds")
    require(profile.sent_bytes <= PROMPT_BYTES_MAX, "sent_bytes is out of bounds")
    require(bool(profile.session_key), "session_key is empty")
    require(profile.budget_tokens <= TOKENS_MAX, "budget_tokens is out of bounds")
    return RequestProfile(
        request_id=RequestId(read_key(message.request_id, "request_id")),
        model=ModelName("") if profile.follows and not profile.model else _model(profile.model),
        tenant=TenantName(read_key(profile.tenant, "tenant")),
        prompt_bytes=profile.prompt_bytes,
        prefix=profile.prefix,
        prefix_block_bytes=profile.prefix_block_bytes,
        session_key=read_text(profile.session_key, "session_key", TEXT_LENGTH_MAX),
        stream=profile.stream,
        output_tokens_max=profile.output_tokens_max if profile.HasField("output_tokens_max") else None,
        follows=read_text(profile.follows, "follows", KEY_LENGTH_MAX),
        is_control=profile.is_control,
        connectors=_connectors(profile.connectors),
        budget_tokens=profile.budget_tokens,
        appends=profile.goes_on,
        service_class=_service_class(profile.service_class),
        sent_bytes=profile.sent_bytes,
        identity=_needed(profile.identity) if profile.HasField("identity") else None,
        hints=_hints(profile.hints) if profile.HasField("hints") else NO_HINTS,
        keeps_yielding=profile.keeps_yielding,
    )


def _needed_to_pb(needed: NeededIdentity) -> pb.NeededIdentity:
    return pb.NeededIdentity(name=needed.name, takes_unknown=needed.takes_unknown)


def _needed(message: pb.NeededIdentity) -> NeededIdentity:
    return NeededIdentity(_identity(message.name), takes_unknown=message.takes_unknown)


def _identity(told: str) -> str:
    """Identity of a model; empty: not known. Raises WireError for one that no region file could declare."""
    require(is_model_identity(told), "an identity is too long or not printable")
    return told


def _service_class(told: str) -> ServiceClass:
    """An unknown class of a newer peer is served as interactive, the best class, so that it gets no less than
    promised."""
    return _SERVICE_CLASSES.get(told, ServiceClass.INTERACTIVE)


def _connectors(told: Collection[str]) -> frozenset[Connector]:
    """Known connectors of the list; unknown ones are ignored. Raises WireError for too many."""
    if len(told) == len(_CONNECTORS_TOLD) and set(told) == _CONNECTORS_TOLD.keys():
        return ALL_CONNECTORS
    require(len(told) <= LIST_LENGTH_MAX, "too many connectors")
    return frozenset(_CONNECTORS_TOLD[each] for each in told if each in _CONNECTORS_TOLD)


def _stamp_to_pb(stamp: ResidencyStamp) -> pb.ResidencyStamp:
    return pb.ResidencyStamp(
        origin=place_to_pb(stamp.origin),
        tenant=stamp.tenant,
        rule=rule_to_pb(stamp.rule),
        policy_digest=stamp.policy_digest,
    )


def _stamp(message: pb.ResidencyStamp) -> ResidencyStamp:
    return ResidencyStamp(
        origin=read_place(message.origin, "stamp origin"),
        tenant=TenantName(read_key(message.tenant, "stamp tenant")),
        rule=read_rule(message.rule),
        policy_digest=read_text(message.policy_digest, "policy_digest", KEY_LENGTH_MAX),
    )


def _resumes_to_pb(told: tuple[int, ...]) -> pb.Resumes:
    count, first_step_deaths = told
    return pb.Resumes(count=min(count, RESUMES_MAX), first_step_deaths=min(first_step_deaths, RESUMES_MAX))


def _resumes(message: pb.Resumes) -> Notes:
    require(max(message.count, message.first_step_deaths) <= RESUMES_MAX, "resumes are out of bounds")
    return {_RESUME: (message.count, message.first_step_deaths)}


# A forward's answers


def refusal_to_pb(reason: RefusalReason, detail: str) -> pb.Refused:
    return pb.Refused(reason=reason, detail=detail[:TEXT_LENGTH_MAX])


def read_refused(message: pb.Refused) -> tuple[RefusalReason, str]:
    reason, detail = _word(RefusalReason, message.reason, message.detail)
    return reason or UNKNOWN_REFUSAL, detail


def write_head(message: pb.Head, head: LegHead) -> None:
    place = head.ran_at.place
    ran_at = f"{head.ran_at.replica_id};{place.region};{place.jurisdiction}"
    headers = tuple(pair for pair in head.headers if pair[0].lower() != RAN_AT_HEADER)
    message.status = head.status
    message.identity = head.identity
    message.headers.extend(_headers_to_pb(((RAN_AT_HEADER, ran_at), *headers)))


def read_head(message: pb.Head) -> LegHead:
    require(200 <= message.status <= 599, f"{message.status} is not a final HTTP status")
    require(message.status not in _BODILESS, f"a status of {message.status} has no body to be sent with")
    headers = _headers(message.headers)
    named = [value for name, value in headers if name == RAN_AT_HEADER]
    require(len(named) == 1, "the head does not say where it comes from")
    own = tuple(pair for pair in headers if pair[0] != RAN_AT_HEADER)
    return LegHead(message.status, own, _ran_at(named[0]), identity=_identity(message.identity))


def _ran_at(text: str) -> RanAt:
    parts = text.split(";")
    require(len(parts) == 3, f"{RAN_AT_HEADER} is malformed")
    region, jurisdiction = (read_id(part, RAN_AT_HEADER) for part in parts[1:])
    return RanAt(read_replica_id(parts[0], RAN_AT_HEADER), Place(RegionName(region), Jurisdiction(jurisdiction)))


def end_to_pb(end: EndRequest, summary: RequestSummary) -> pb.Ended:
    ended = pb.Ended(
        outcome=end.outcome,
        detail=end.detail[:TEXT_LENGTH_MAX],
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        final=end.is_final,
    )
    used = end.notes.get(_RESUME, _UNUSED)
    if end.outcome is not Outcome.COMPLETED or used[0]:
        ended.resumes_used.CopyFrom(_resumes_to_pb(used))
    if summary.ran_at is not None:
        ended.replica_id = summary.ran_at.replica_id
        ended.place.CopyFrom(place_to_pb(summary.ran_at.place))
    return ended


def read_ended(message: pb.Ended) -> EndedForward:
    ran_at = None
    if message.replica_id:
        ran_at = RanAt(read_replica_id(message.replica_id, "replica_id"), read_place(message.place, "ended place"))
    outcome, detail = _word(Outcome, message.outcome, message.detail)
    return EndedForward(
        outcome=outcome,
        detail=detail,
        ran_at=ran_at,
        prompt_tokens=message.prompt_tokens if message.HasField("prompt_tokens") else None,
        output_tokens=message.output_tokens if message.HasField("output_tokens") else None,
        is_final=message.final,
        notes=_resumes(message.resumes_used) if message.HasField("resumes_used") else {},
    )


# Decisions, explained


def explain_request(gateway_id: GatewayId, request_id: RequestId) -> pb.ExplainRequest:
    return pb.ExplainRequest(gateway_id=gateway_id, request_id=request_id)


def read_explain_request(message: pb.ExplainRequest) -> tuple[GatewayId, RequestId]:
    return read_gateway_id(message.gateway_id, "gateway_id"), RequestId(read_key(message.request_id, "request_id"))


def explained_to_pb(explained: ExplainedRequest) -> pb.ExplainResponse:
    return pb.ExplainResponse(document=msgspec.json.encode(_bounded(explained)))


def _bounded(explained: ExplainedRequest) -> ExplainedRequest:
    return replace(
        explained,
        placements=tuple(
            replace(each, considered=each.considered[:PLACEMENTS_MAX], detail=each.detail[:TEXT_LENGTH_MAX])
            for each in explained.placements[-PLACEMENTS_MAX:]
        ),
        refusals=tuple(replace(each, detail=each.detail[:TEXT_LENGTH_MAX]) for each in explained.refusals),
        detail=explained.detail[:TEXT_LENGTH_MAX],
        identity_mismatch=(explained.identity_mismatch or "")[:TEXT_LENGTH_MAX] or UNSET,
        hints=(explained.hints or "")[:TEXT_LENGTH_MAX] or UNSET,
    )


def read_explained(message: pb.ExplainResponse) -> ExplainedRequest:
    """An explanation for people to read: words are bounded but not interpreted, so that a newer peer's words are shown
    as they are."""
    require(len(message.document) <= EXPLAINED_BYTES_MAX, "the explanation is too long")
    try:
        explained = _EXPLAINED.decode(message.document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"the explanation cannot be read: {error}") from error
    require(len(explained.placements) <= PLACEMENTS_MAX, "too many placements")
    require(len(explained.refusals) <= PLACEMENTS_MAX, "too many refusals")
    read_id(explained.gateway, "gateway")
    read_key(explained.request_id, "request_id")
    read_text(explained.model, "model", MODEL_NAME_LENGTH_MAX)
    for each in (explained.region, explained.jurisdiction):
        read_id(each, "place")
    for what in ("origin", "outcome", "replica", "ran_in"):
        _label(getattr(explained, what), what)
    read_text(explained.detail, "detail")
    read_text(explained.identity_mismatch or "", "identity_mismatch")
    read_text(explained.hints or "", "hints")
    for refusal in explained.refusals:
        _label(refusal.reason, "reason")
        read_text(refusal.detail, "detail")
    for placement in (*explained.placements, *filter(None, (explained.shadow,))):
        _check_placement(placement)
    return explained


def _check_placement(placement: ExplainedPlacement) -> None:
    require(len(placement.considered) <= PLACEMENTS_MAX, "too many targets considered")
    for what in ("kind", "target", "region", "reason", "result", "refusal"):
        _label(getattr(placement, what), what)
    read_text(placement.detail, "detail")
    if placement.pool:
        _label(placement.pool.step, "step")
        for what in ("pool", "preferred"):
            if name := getattr(placement.pool, what):
                read_pool_name(name, what)
    for candidate in placement.considered:
        for what in ("kind", "id", "region", "standing"):
            _label(getattr(candidate, what), what)
        if candidate.decode:
            _label(candidate.decode.group, "group")
        if candidate.costs:
            _check_costs(candidate.costs)


def _check_costs(costs: ExplainedCosts) -> None:
    whole = ExplainedCosts.of(costs.reading, costs.crowding, costs.waiting, costs.distance)
    require(costs.score == whole.score, "a score is not the sum of its parts")
    further = costs.further or {}
    require(len(further) <= FIGURES_MAX, "too many figures")
    for name, figure in further.items():
        _label(name, "figure")
        read_text(figure.unit, "unit", KEY_LENGTH_MAX)


# Assignment of replicas


def ownership_request(gateway_id: GatewayId) -> pb.OwnershipRequest:
    return pb.OwnershipRequest(gateway_id=gateway_id)


def read_ownership_request(message: pb.OwnershipRequest) -> GatewayId:
    return read_gateway_id(message.gateway_id, "gateway_id")


def ownership_to_pb(ownership: Ownership) -> pb.OwnershipResponse:
    version = ownership.version
    return pb.OwnershipResponse(term=version.term, version=version.version, away=owners_to_pb(ownership.away))


def read_ownership(message: pb.OwnershipResponse) -> Ownership:
    return Ownership(ControlVersion(message.term, message.version), read_owners(message.away, "away"))


# Parts


def _headers_to_pb(headers: Headers) -> list[pb.Header]:
    """Headers of a client or an engine that may be forwarded; the others are dropped, as at any proxy."""
    travelling = [_header_to_pb(name, value) for name, value in headers if _header_fault(name, value) is None]
    return travelling[:HEADERS_MAX]


def _header_to_pb(name: str, value: str) -> pb.Header:
    if value.isascii() and value.isprintable():
        return pb.Header(name=name, value=value)
    return pb.Header(name=name, raw=to_bytes(value))


def _headers(messages: Collection[pb.Header]) -> Headers:
    require(len(messages) <= HEADERS_MAX, "too many headers")
    headers = tuple((each.name, _header_value(each)) for each in messages)
    for name, value in headers:
        if fault := _header_fault(name, value):
            raise WireError(fault)
    return headers


def _header_value(message: pb.Header) -> str:
    require(not (message.raw and message.value), "a header has two values")
    return from_bytes(message.raw) if message.raw else from_text(message.value)


def _header_fault(name: str, value: str) -> str | None:
    if _HEADER_NAME.fullmatch(name) is None:
        return "a header's name is not a token"
    if name.lower() in _FORBIDDEN_HEADERS:
        return f"header {name.lower()} may not be forwarded"
    if len(value) > HEADER_VALUE_LENGTH_MAX or has_control_character(value):
        return f"header {name}: value is too long or has a control character"
    return None


def _label(text: str, what: str) -> str:
    """An id, of a replica too, or the empty string."""
    return read_replica_id(text, what) if text else ""


def _model(text: str) -> ModelName:
    require(0 < len(text) <= MODEL_NAME_LENGTH_MAX and text.isprintable(), "model is not a model name")
    return ModelName(text)


def _word(words: type[_Word], text: str, detail: str) -> tuple[_Word | None, str]:
    """The outcome or refusal reason, None if it is unknown (a newer peer's), and the detail, which then quotes the
    word."""
    read_text(detail, "detail", TEXT_LENGTH_MAX)
    try:
        return words(text), detail
    except ValueError:
        return None, f"{read_id(text, words.__name__)!r} is a word of another version: {detail}"
