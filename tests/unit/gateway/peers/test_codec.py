from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest
from gateway.core.response_key import response_key
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    ControlVersion,
    GatewayId,
    Hints,
    Hops,
    LoadReport,
    ModelCapacity,
    ModelName,
    ModelQueue,
    NeededIdentity,
    Notes,
    Outcome,
    PlaceRule,
    PoolName,
    RefusalReason,
    RegionsWithin,
    ReplicaId,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    ServiceClass,
    TenantName,
    TenantUse,
)
from gateway.peers import codec
from gateway.records.peer_usage import BudgetUse
from gateway.request.header_values import from_bytes, from_text, has_control_character, to_bytes
from gateway.request.legs import LegHead, OutboundRequest, RanAt, RequestSummary
from mesh.wire import TEXT_LENGTH_MAX, WireError
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.other_versions import frozen, said_by_frozen
from tests.fakes.spoken import BODY as SPOKEN_BODY
from tests.fakes.spoken import HEAD as SPOKEN_HEAD
from tests.fakes.spoken import PROFILE as SPOKEN_PROFILE
from tests.fakes.spoken import REPORT as SPOKEN_REPORT
from tests.fakes.spoken import STAMP as SPOKEN_STAMP
from tests.fakes.spoken import spoken
from tests.support.core import AP, EU, MODEL, MS, SECOND, US
from tests.support.orders import forward_order

PROFILE = RequestProfile(
    RequestId("r-1"), MODEL, TenantName("acme corp"), 40, bytes(range(16)), 16, "session", stream=True
)
STAMP = ResidencyStamp(
    US,
    TenantName("acme corp"),
    PlaceRule(
        frozenset({US.jurisdiction}),
        frozenset({EU.region}),
        frozenset({AP.region}),
        (RegionsWithin(frozenset({AP.region, EU.region}), frozenset({AP.jurisdiction})),),
    ),
    "abc",
)
BODY = b'{"model":"llama","messages":[{"role":"user","content":"\xff"}]}'
REQUEST = OutboundRequest(PROFILE, "/v1/chat/completions", (("content-type", "application/json"),), BODY)
ORDER = replace(forward_order(PROFILE.request_id, stamp=STAMP), deadline_ns=7 * SECOND)
ADOPTED = PoolName("-".join(["x" * 31] * 2) + "@" + "y" * 64)
"""Longest name of an adopted pool."""
REPORT = LoadReport(
    GatewayId("us-1"),
    US,
    sequence=7,
    accepting=True,
    assignment_version=3,
    policy_digest="abc",
    capacities=(
        ModelCapacity(
            MODEL,
            DEFAULT_POOL,
            EU,
            4,
            2,
            load=17,
            backlog_bytes=70_000,
            free_tokens=0,
            room=-3,
            release_ns=25_000_000,
            identity="llama@1",
            yielding=5,
            spare=2,
        ),
        ModelCapacity(MODEL, PoolName("short"), EU, 1, 1, context_tokens_max=8192, threshold_tokens=8000),
        ModelCapacity(MODEL, ADOPTED, EU, 1, 1),
    ),
    queues=(ModelQueue(MODEL, 4, PoolName("short")), ModelQueue(MODEL, 1, ADOPTED), ModelQueue(MODEL, 9, None, 2)),
    control=ControlVersion(2, 2**40),
)


def over_the_wire(message: pb.ForwardRequest) -> pb.ForwardRequest:
    return pb.ForwardRequest.FromString(message.SerializeToString())


def forward() -> pb.ForwardRequest:
    return codec.forward_to_pb(ORDER, REQUEST, GatewayId("us-1"), now_ns=2 * SECOND)


def load() -> pb.SubscribeResponse:
    return codec.load_to_pb(REPORT, age_ns=1500)


def test_a_forward_arrives_as_it_was_sent_with_its_deadline_on_the_receivers_clock() -> None:
    arrived = codec.read_forward(over_the_wire(forward()), now_ns=100 * SECOND)
    assert arrived.request == REQUEST
    assert arrived.event.profile == PROFILE
    assert arrived.event.deadline_ns == 105 * SECOND
    assert arrived.event.origin_gateway_id == "us-1"
    assert arrived.event.hops == Hops(0, 1)
    assert arrived.event.stamp == STAMP


def test_what_its_origin_takes_it_to_come_to_travels_with_it() -> None:
    message = codec.forward_to_pb(replace(ORDER, budget_tokens=9000), REQUEST, GatewayId("us-1"), now_ns=2 * SECOND)
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.budget_tokens == 9000


def test_what_a_picture_is_to_send_travels_with_it() -> None:
    request = replace(REQUEST, profile=replace(PROFILE, sent_bytes=750_000))
    message = codec.forward_to_pb(ORDER, request, GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.sent_bytes == 750_000


@pytest.mark.parametrize("service_class", ServiceClass)
def test_its_class_travels_with_it(service_class: ServiceClass) -> None:
    request = replace(REQUEST, profile=replace(PROFILE, service_class=service_class))
    message = codec.forward_to_pb(ORDER, request, GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.service_class is service_class


@pytest.mark.parametrize("yields", [True, False])
def test_a_line_of_a_batch_keeps_yielding_wherever_it_goes(*, yields: bool) -> None:
    request = replace(REQUEST, profile=replace(PROFILE, service_class=ServiceClass.BATCH, keeps_yielding=True))
    message = codec.forward_to_pb(replace(ORDER, yields=yields), request, GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.keeps_yielding is yields


def test_what_yields_no_more_at_its_origin_yields_nowhere() -> None:
    request = replace(REQUEST, profile=replace(PROFILE, service_class=ServiceClass.BATCH))
    message = codec.forward_to_pb(replace(ORDER, yields=False), request, GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.service_class is ServiceClass.INTERACTIVE


@pytest.mark.parametrize("told", ["", "gold"])
def test_a_class_that_nobody_here_knows_is_served_like_the_best(told: str) -> None:
    message = forward()
    message.profile.service_class = told
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.service_class is ServiceClass.INTERACTIVE


def test_whoever_does_not_know_pools_reads_the_whole_queue() -> None:
    """A reader that keys queues by model keeps the last of several entries."""
    assert {each.model: each.length for each in load().queues} == {MODEL: 9}


def control_forward(tenant: TenantName = PROFILE.tenant) -> pb.ForwardRequest:
    key = response_key(tenant, "resp_1")
    profile = RequestProfile(
        PROFILE.request_id, ModelName(""), PROFILE.tenant, 0, b"", 16, key, stream=False, follows=key, is_control=True
    )
    request = OutboundRequest(profile, "/v1/responses/resp_1?stream=false", (), b"", "GET")
    return codec.forward_to_pb(ORDER, request, GatewayId("us-1"), now_ns=0)


def test_a_call_about_a_stored_response_arrives_as_it_was_sent() -> None:
    arrived = codec.read_forward(over_the_wire(control_forward()), now_ns=0)
    assert (arrived.request.method, arrived.request.path) == ("GET", "/v1/responses/resp_1?stream=false")
    assert arrived.event.profile.is_control


def test_it_must_be_routed_by_the_response_that_it_names() -> None:
    with pytest.raises(WireError, match="follows"):
        codec.read_forward(control_forward(TenantName("other")), now_ns=0)


def test_whether_a_response_is_kept_is_told() -> None:
    request = replace(REQUEST, path="/v1/responses", stores_response=True)
    message = codec.forward_to_pb(ORDER, request, GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).request.stores_response


@pytest.mark.parametrize("is_traced", [True, False])
def test_whose_span_its_traceparent_names_is_told(is_traced: bool) -> None:
    message = codec.forward_to_pb(ORDER, replace(REQUEST, is_traced=is_traced), GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).request.is_traced is is_traced


def test_a_forward_without_a_method_is_a_post() -> None:
    message = forward()
    message.ClearField("method")
    assert codec.read_forward(message, now_ns=0).request.method == "POST"


def test_a_deadline_that_has_just_passed_still_travels_as_one() -> None:
    message = codec.forward_to_pb(ORDER, REQUEST, GatewayId("us-1"), now_ns=8 * SECOND)
    assert codec.read_forward(message, now_ns=0).event.deadline_ns == MS


def test_a_heartbeat_carries_its_age() -> None:
    report, age_ns = codec.read_load(pb.SubscribeResponse.FromString(load().SerializeToString()))
    assert report == REPORT
    assert age_ns == 1000, "microseconds cross the wire"


def test_a_gateway_of_an_older_version_tells_no_load() -> None:
    message = load()
    for name in ("load", "backlog_bytes", "free_tokens", "room", "release_us", "identity", "yielding", "spare"):
        message.capacities[0].ClearField(name)
    report, _ = codec.read_load(message)
    assert report.capacities[0] == ModelCapacity(MODEL, DEFAULT_POOL, EU, 4, 2, room=2, spare=2)
    assert report.capacities[0].free_tokens is None, "which is not a cache without room"


@pytest.mark.parametrize(
    ("name", "most", "fault"),
    [
        ("load", codec.LOAD_MAX, "the load is no number of requests"),
        ("backlog_bytes", codec.BACKLOG_BYTES_MAX, "the backlog is larger"),
        ("free_tokens", codec.FREE_TOKENS_MAX, "no cache has so much room"),
    ],
)
def test_a_load_beyond_all_reason_is_never_told_and_never_believed(name: str, most: int, fault: str) -> None:
    many = replace(REPORT, capacities=(replace(REPORT.capacities[0], **{name: 10**20}),))
    report, _ = codec.read_load(codec.load_to_pb(many, age_ns=0))
    assert getattr(report.capacities[0], name) == most
    message = load()
    setattr(message.capacities[0], name, most + 1)
    with pytest.raises(WireError, match=fault):
        codec.read_load(message)


USES = (TenantUse(TenantName("acme"), 3, 5, 600, 10_000), TenantUse(TenantName("other")))
BUDGETS = [BudgetUse(("key", "team-a"), "2026-11-22", 4, 40, 2), BudgetUse(("tenant", "acme"), "2026-11-22", 5, 50)]


def told_of_tenants() -> pb.SubscribeResponse:
    message = codec.load_to_pb(replace(REPORT, uses=USES), age_ns=0)
    codec.write_budget_uses(message, BUDGETS)
    return pb.SubscribeResponse.FromString(message.SerializeToString())


def test_a_heartbeat_carries_what_tenants_do_and_what_is_used_of_budgets() -> None:
    message = told_of_tenants()
    assert codec.read_load(message)[0].uses == USES
    assert codec.read_budget_uses(message) == BUDGETS


def test_where_a_tenant_may_be_known_is_told_to_nobody() -> None:
    use = replace(USES[0], told_in=PlaceRule(regions=frozenset({EU.region})))
    assert codec.read_load(codec.load_to_pb(replace(REPORT, uses=(use,)), 0))[0].uses == USES[:1]


def test_what_is_no_use_of_a_tenant_or_a_budget_is_a_fault() -> None:
    many = codec.load_to_pb(replace(REPORT, uses=(TenantUse(TenantName("acme"), 10**30),)), age_ns=0)
    assert codec.read_load(many)[0].uses[0].running == codec.TOKENS_MAX
    for change, fault in (
        (lambda message: setattr(message.tenant_uses[0], "demand", 2**63), "so much"),
        (lambda message: setattr(message.tenant_uses[0], "tenant", ""), "tenant"),
        (lambda message: message.tenant_uses.extend([pb.TenantUse(tenant="x")] * 5000), "too many tenants"),
    ):
        message = told_of_tenants()
        change(message)
        with pytest.raises(WireError, match=fault):
            codec.read_load(message)
    for change, fault in (
        (lambda message: setattr(message.budget_uses[0], "day", "today"), "no day"),
        (lambda message: setattr(message.budget_uses[0], "tokens_in_day", 2**63), "so large"),
        (lambda message: setattr(message.budget_uses[0], "name", ""), "budget"),
        (lambda message: message.budget_uses.extend([pb.BudgetUse(kind="key")] * 5000), "too many budgets"),
    ):
        message = told_of_tenants()
        change(message)
        with pytest.raises(WireError, match=fault):
            codec.read_budget_uses(message)


def test_a_budget_of_a_kind_that_is_not_known_is_not_read() -> None:
    message = told_of_tenants()
    message.budget_uses[0].kind = "street"
    assert codec.read_budget_uses(message) == BUDGETS[1:]


def test_a_head_says_where_it_ran_and_leaves_the_connections_headers_behind() -> None:
    head = LegHead(
        200,
        (
            ("Content-Type", "text/event-stream"),
            ("Transfer-Encoding", "chunked"),
            ("Set-Cookie", "a=b"),
            ("X-Nightside-Ran-At", "forged;by;engine"),
            ("x-bad", "line\r\nbreak"),
        ),
        RanAt(ReplicaId("eu-a"), EU),
    )
    read = codec.read_head(answer_frames.head(head).head)
    assert read == LegHead(200, (("Content-Type", "text/event-stream"),), head.ran_at)


def test_an_end_tells_outcome_place_and_tokens() -> None:
    end = EndRequest(PROFILE.request_id, Outcome.COMPLETED, "fine", 1)
    summary = RequestSummary(ran_at=RanAt(ReplicaId("eu-a"), EU), prompt_tokens=5)
    assert codec.read_ended(answer_frames.ended(end, summary).ended) == codec.EndedForward(
        Outcome.COMPLETED, "fine", RanAt(ReplicaId("eu-a"), EU), 5, None
    )
    nowhere = codec.read_ended(answer_frames.ended(end, RequestSummary()).ended)
    assert nowhere.ran_at is None


def noted(resumes: tuple[int, ...] | None) -> Notes:
    return {} if resumes is None else {"resume": resumes}


@pytest.mark.parametrize("left", [None, (0, 0), (3, 0), (2, 1)])
def test_a_forward_tells_what_is_left_of_its_resumes_or_nothing(left: tuple[int, ...] | None) -> None:
    """No value and zero differ: a sender of the previous version sends no value."""
    message = codec.forward_to_pb(replace(ORDER, notes=noted(left)), REQUEST, GatewayId("gw-us"), now_ns=0)
    assert message.HasField("resumes_left") is (left is not None)
    assert codec.read_forward(message, now_ns=0).event.notes == noted(left)


@pytest.mark.parametrize("used", [(0, 0), (3, 1)])
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED_MIDSTREAM])
def test_an_end_tells_what_was_used_of_them(outcome: Outcome, used: tuple[int, ...]) -> None:
    """An answer that came whole and never broke has no used resumes to report."""
    end = EndRequest(PROFILE.request_id, outcome, "", 1, notes=noted(used))
    message = answer_frames.ended(end, RequestSummary()).ended
    is_told = outcome is not Outcome.COMPLETED or used[0] > 0
    assert message.HasField("resumes_used") is is_told
    assert codec.read_ended(message).notes == noted(used if is_told else None)


def test_resumes_beyond_all_reason_are_never_told_and_never_believed() -> None:
    end = EndRequest(PROFILE.request_id, Outcome.FAILED_MIDSTREAM, "", 1, notes=noted((10**12, 10**12)))
    assert codec.read_ended(answer_frames.ended(end, RequestSummary()).ended).notes == noted(
        (codec.RESUMES_MAX, codec.RESUMES_MAX)
    )
    with pytest.raises(WireError, match="resumes"):
        codec.read_ended(pb.Ended(outcome="completed", resumes_used=pb.Resumes(first_step_deaths=2**31)))


def test_a_refusal_keeps_its_reason() -> None:
    message = answer_frames.refused(RefusalReason.QUEUE_FULL, "x" * 5000)
    assert codec.read_refused(message.refused) == (RefusalReason.QUEUE_FULL, "x" * TEXT_LENGTH_MAX)


def put(path: str, value: object) -> Callable[[pb.ForwardRequest], None]:
    def change(message: pb.ForwardRequest) -> None:
        owner: object = message
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)

    return change


def add_header(name: str, value: str) -> Callable[[pb.ForwardRequest], object]:
    return lambda message: message.headers.add(name=name, value=value)


BAD_FORWARDS: list[tuple[Callable[[pb.ForwardRequest], object], str]] = [
    (put("request_id", ""), "request_id"),
    (put("request_id", "x" * 257), "request_id"),
    (put("request_id", "a\nb"), "request_id"),
    (put("origin_gateway_id", "no good"), "origin_gateway_id"),
    (put("hops_cross_region", 0), "hops"),
    (put("hops_in_region", 99), "hops"),
    (put("deadline_ms", 0), "deadline_ms"),
    (put("deadline_ms", 2**63), "deadline_ms"),
    (put("path", "/v1/load_lora_adapter"), "path"),
    (put("path", "/v1/chat/completions/../../sleep"), "path"),
    (put("path", "/v1/responses/resp_1"), "path"),
    (put("method", "DELETE"), "path"),
    (put("stamp.origin.region", ""), "stamp origin"),
    (put("stamp.origin.jurisdiction", "U S"), "stamp origin"),
    (put("stamp.tenant", "somebody else"), "different tenants"),
    (lambda message: message.stamp.rule.regions.append("/"), "regions"),
    (lambda message: message.stamp.rule.denied_regions.extend(["r"] * 5000), "denied_regions"),
    (lambda message: message.stamp.rule.regions_within.add(regions=["/"], jurisdictions=["US"]), "regions_within"),
    (lambda message: message.stamp.rule.regions_within.add(regions=["r"], jurisdictions=["U S"]), "regions_within"),
    (lambda message: message.stamp.rule.regions_within.extend([pb.RegionsWithin()] * 65), "regions_within"),
    (put("profile.model", ""), "model"),
    (put("profile.model", "m" * 257), "model"),
    (put("profile.tenant", ""), "tenant"),
    (put("profile.prefix", b"1234567"), "whole number"),
    (put("profile.prefix", b"x" * 24), "longer than its prompt"),
    (put("profile.prefix", b"x" * 8 * 8192), "longer than its prompt"),
    (put("profile.prefix_block_bytes", 0), "prefix_block_bytes"),
    (put("profile.prompt_bytes", 2**40), "prompt_bytes"),
    (put("profile.sent_bytes", 2**40), "sent_bytes"),
    (put("profile.hints.output_tokens", 2**31 + 1), "hints.output_tokens"),
    (put("profile.hints.priority", 2**21 + 1), "hints.priority"),
    (put("profile.session_key", ""), "session_key"),
    (put("profile.session_key", "s" * 1025), "session_key"),
    (put("resumes_left.count", 1001), "resumes"),
    (put("resumes_left.first_step_deaths", 2**32 - 1), "resumes"),
    (add_header("authorization", "Bearer x"), "authorization"),
    (add_header("Content-Length", "5"), "content-length"),
    (add_header("a b", "c"), "token"),
    (add_header("a", "b\r\nc: d"), "control character"),
    (add_header("a", "b" * 9000), "too long"),
    (lambda message: message.headers.extend([pb.Header(name="a", value="b")] * 65), "too many headers"),
]


@pytest.mark.parametrize("change,fault", BAD_FORWARDS)
def test_a_malformed_forward_is_turned_away(change: Callable[[pb.ForwardRequest], object], fault: str) -> None:
    message = forward()
    change(message)
    with pytest.raises(WireError, match=fault):
        codec.read_forward(over_the_wire(message), now_ns=0)


@pytest.mark.parametrize(("blocks", "is_right"), [(4096, True), (4097, True), (4098, True), (4099, False)])
def test_a_long_prompt_has_as_many_blocks_as_its_bytes_allow(blocks: int, is_right: bool) -> None:
    """One whole growing block, of 64 times the size of the first ones, and a part of the next."""
    message = forward()
    message.profile.prefix_block_bytes = 2
    message.profile.prompt_bytes = 2 * (4096 + 64) + 1
    message.profile.prefix = b"x" * 8 * blocks
    if is_right:
        assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.prefix_blocks == blocks
        return
    with pytest.raises(WireError, match="longer than its prompt"):
        codec.read_forward(over_the_wire(message), now_ns=0)


@given(st.binary(min_size=1, max_size=40))
def test_a_header_s_bytes_cross_as_they_came_unless_they_hold_a_control_character(raw: bytes) -> None:
    text = from_bytes(raw)
    request = replace(REQUEST, headers=(("x-session-id", text),))
    message = over_the_wire(codec.forward_to_pb(ORDER, request, GatewayId("us-1"), now_ns=0))
    arrived = codec.read_forward(message, now_ns=0).request.headers
    assert arrived == (() if has_control_character(text) else (("x-session-id", text),))


def test_plain_values_stand_where_an_older_gateway_reads_them_and_others_where_it_does_not() -> None:
    headers = (("a", "plain"), ("b", from_text("\u65e5\u672c")), ("c", "a\tb"))
    message = codec.forward_to_pb(ORDER, replace(REQUEST, headers=headers), GatewayId("us-1"), now_ns=0)
    told = [(each.name, each.value, each.raw) for each in message.headers]
    assert told == [("a", "plain", b""), ("b", "", "\u65e5\u672c".encode()), ("c", "", b"a\tb")]


def test_text_of_an_older_gateway_is_the_bytes_that_it_stands_for() -> None:
    message = forward()
    message.headers.add(name="x-session-id", value="\u65e5\u672c")
    headers = dict(codec.read_forward(over_the_wire(message), now_ns=0).request.headers)
    assert to_bytes(headers["x-session-id"]) == "\u65e5\u672c".encode()


def test_a_header_has_one_value() -> None:
    message = forward()
    message.headers.add(name="x-session-id", value="a", raw=b"b")
    with pytest.raises(WireError, match="two values"):
        codec.read_forward(over_the_wire(message), now_ns=0)


def test_an_empty_message_is_malformed_not_a_crash() -> None:
    with pytest.raises(WireError):
        codec.read_forward(pb.ForwardRequest(), now_ns=0)
    with pytest.raises(WireError):
        codec.read_load(pb.SubscribeResponse())
    with pytest.raises(WireError):
        codec.read_subscribe_request(pb.SubscribeRequest())
    with pytest.raises(WireError):
        codec.read_head(pb.Head())
    with pytest.raises(WireError):
        codec.read_ended(pb.Ended())
    with pytest.raises(WireError):
        codec.read_refused(pb.Refused())


BAD_LOADS: list[tuple[Callable[[pb.SubscribeResponse], object], str]] = [
    (lambda message: setattr(message, "age_us", 2**62), "age_us"),
    (lambda message: setattr(message, "gateway_id", ""), "gateway_id"),
    (lambda message: setattr(message.capacities[0], "available", 5), "more replicas available"),
    (lambda message: setattr(message.capacities[0], "pool", ""), "pool"),
    (lambda message: setattr(message.capacities[0].place, "region", ""), "capacity place"),
    (lambda message: message.queues.extend([pb.ModelQueue(model="m")] * 5000), "too many queues"),
    (lambda message: message.queues.add(), "model"),
    (lambda message: setattr(message.queues[0], "pool", "no pool"), "pool"),
    (lambda message: setattr(message.capacities[1], "context_tokens_max", 2**62), "no engine has such a context"),
    (lambda message: setattr(message.capacities[1], "threshold_tokens", 2**62), "no request comes to"),
    (lambda message: setattr(message, "policy_digest", "d" * 300), "policy_digest"),
]


@pytest.mark.parametrize("change,fault", BAD_LOADS)
def test_a_malformed_heartbeat_is_turned_away(change: Callable[[pb.SubscribeResponse], object], fault: str) -> None:
    message = load()
    change(message)
    with pytest.raises(WireError, match=fault):
        codec.read_load(message)


@pytest.mark.parametrize("ran_at", ["", "a;b", "a;b;c;d", "a;;c", ";b;c"])
def test_a_head_from_nowhere_is_turned_away(ran_at: str) -> None:
    head = pb.Head(status=200, headers=[pb.Header(name=codec.RAN_AT_HEADER, value=ran_at)])
    with pytest.raises(WireError, match="ran-at"):
        codec.read_head(head)


def test_a_word_of_a_newer_version_is_no_fault_and_stands_in_the_detail() -> None:
    reason, detail = codec.read_refused(pb.Refused(reason="sulking", detail="leave me alone"))
    assert (reason, detail) == (RefusalReason.BUSY, "'sulking' is a word of another version: leave me alone")
    ended = codec.read_ended(pb.Ended(outcome="vanished"))
    assert (ended.outcome, ended.detail) == (None, "'vanished' is a word of another version: ")


@pytest.mark.parametrize("word", ["", "two words", "line\nbreak", "x" * 65])
def test_what_is_no_word_at_all_is_a_fault(word: str) -> None:
    with pytest.raises(WireError, match="RefusalReason"):
        codec.read_refused(pb.Refused(reason=word))
    with pytest.raises(WireError, match="Outcome"):
        codec.read_ended(pb.Ended(outcome=word))


def test_a_model_keeps_its_slashes() -> None:
    report = LoadReport(GatewayId("a"), US, 1, True, 1, "", (), (ModelQueue(ModelName("org/model:v1"), 1),))
    assert codec.read_load(codec.load_to_pb(report, 0))[0] == report


# An older version, whose codec made the messages of `said_by_frozen`

BEFORE = said_by_frozen()


@pytest.mark.parametrize("name", BEFORE)
def test_what_we_say_is_to_an_older_version_what_it_would_say_itself(name: str) -> None:
    """The older version passes over unknown fields, and the rest is the same to the byte."""
    assert frozen().reads(spoken()[name]) == BEFORE[name]


@pytest.mark.parametrize("name", BEFORE)
def test_what_an_older_version_says_we_take_for_all_that_it_means(name: str) -> None:
    """The message as read equals the current version's message without its new fields."""
    ours = spoken()[name]
    theirs = type(ours).FromString(BEFORE[name])
    assert theirs.SerializeToString(deterministic=True) == BEFORE[name]
    assert frozen().reads(theirs) == frozen().reads(ours)


def test_an_older_version_s_words_become_our_values() -> None:
    heartbeat = pb.SubscribeResponse.FromString(BEFORE["heartbeat"])
    assert codec.read_load(heartbeat) == (SPOKEN_REPORT, SECOND)
    forward = codec.read_forward(pb.ForwardRequest.FromString(BEFORE["forward"]), now_ns=0)
    assert (forward.event.stamp, forward.request.body) == (SPOKEN_STAMP, SPOKEN_BODY)
    assert forward.event.profile.connectors == SPOKEN_PROFILE.connectors
    answers = {name: pb.AnswerFrame.FromString(BEFORE[name]) for name in ("refused", "head", "ended")}
    assert codec.read_refused(answers["refused"].refused) == (RefusalReason.QUEUE_FULL, "full")
    assert codec.read_head(answers["head"].head) == SPOKEN_HEAD
    assert codec.read_ended(answers["ended"].ended).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("word", ["moved_to_another_pool", "rejected_unsupported"])
def test_a_word_that_an_older_version_does_not_know_crosses_its_messages_unharmed(word: str) -> None:
    """An outcome is text on the wire: the older codec itself decides what to make of an unknown one."""
    said = pb.AnswerFrame(ended=pb.Ended(outcome=word))
    assert pb.AnswerFrame.FromString(frozen().reads(said)).ended.outcome == word


@pytest.mark.parametrize("needed", [NeededIdentity("llama@1", takes_unknown=True), NeededIdentity("", False)])
def test_the_identity_that_a_forward_is_bound_to_travels_with_it(needed: NeededIdentity) -> None:
    message = codec.forward_to_pb(replace(ORDER, identity=needed), REQUEST, GatewayId("us-1"), now_ns=0)
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.identity == needed


@pytest.mark.parametrize("hints", [Hints(), Hints(7, 3, ends_session=True), Hints(2**31, 2**21, comes_again=True)])
def test_hints_travel_with_a_forward(hints: Hints) -> None:
    request = replace(REQUEST, profile=replace(PROFILE, hints=hints))
    message = codec.forward_to_pb(ORDER, request, GatewayId("us-1"), now_ns=0)
    assert message.profile.HasField("hints") is (hints != Hints())
    assert codec.read_forward(over_the_wire(message), now_ns=0).event.profile.hints == hints


def test_the_identity_that_answers_travels_with_the_head() -> None:
    message = pb.Head()
    codec.write_head(message, LegHead(200, (), RanAt(ReplicaId("r"), US), identity="llama@1"))
    assert codec.read_head(pb.Head.FromString(message.SerializeToString())).identity == "llama@1"


@pytest.mark.parametrize("identity", ["x" * 257, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 129, "a\nb"])
def test_no_identity_is_longer_than_one_may_be_declared(identity: str) -> None:
    heartbeat, bound, head = load(), forward(), pb.Head()
    heartbeat.capacities[0].identity = bound.profile.identity.name = identity
    codec.write_head(head, LegHead(200, (), RanAt(ReplicaId("r"), US)))
    head.identity = identity
    with pytest.raises(WireError, match="identity"):
        codec.read_load(heartbeat)
    with pytest.raises(WireError, match="identity"):
        codec.read_forward(bound, now_ns=0)
    with pytest.raises(WireError, match="identity"):
        codec.read_head(head)
