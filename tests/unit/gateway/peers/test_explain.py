from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import GatewayId, RequestId
from gateway.peers import codec
from gateway.peers.explain import PeerExplainer
from gateway.records.decisions import (
    ExplainedCandidate,
    ExplainedCosts,
    ExplainedDecode,
    ExplainedFigure,
    ExplainedPlacement,
    ExplainedRefusal,
    ExplainedRequest,
    OtherSide,
)
from mesh.wire import TEXT_LENGTH_MAX, WireError
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.peer import ExplainContext, FakePeer, serve_fake_peer
from tests.support.core import EU, MS, peer_spec
from tests.support.links import peer_link

FIGURES = {"first_token": ExplainedFigure(480.5, "ms"), "money": ExplainedFigure(None, "EUR")}
PRICED = replace(ExplainedCosts.of(412.5, 0.125, 30.0, 0.0), further=FIGURES)


EU_1, US_1, R_1 = GatewayId("eu-1"), GatewayId("us-1"), RequestId("r-1")
PLACEMENT = ExplainedPlacement(
    attempt=2,
    kind="replica",
    target="eu-a",
    region="eu-west-1",
    reason="local_prefix",
    matched_blocks=3,
    prompt_blocks=4,
    candidates=2,
    waited_ms=1.5,
    replicas_here=7,
    considered=(
        ExplainedCandidate("replica", "eu-a", "eu-west-1", "available", 3, 1, 0.0, PRICED),
        ExplainedCandidate("peer", "ap-1", "", "stale", 0, 12, 250.125),
    ),
    result="refused",
    refusal="busy",
    detail="10 requests wait",
)
EXPLAINED = ExplainedRequest(
    gateway="eu-1",
    region="eu-west-1",
    jurisdiction="EU",
    request_id="r-1",
    model="org/llama",
    origin="us-1",
    age_ms=1234.5,
    placements=(PLACEMENT, replace(PLACEMENT, attempt=3, leg=2, result="", refusal="", detail="")),
    refusals=(ExplainedRefusal("hop_limit", "too many"),),
    first_token_ms=12.25,
    outcome="completed",
    detail="d",
    replica="eu-a",
    ran_in="eu-west-1",
)


def test_an_explanation_survives_the_wire() -> None:
    for explained in (EXPLAINED, replace(EXPLAINED, first_token_ms=None, outcome="", replica="", placements=())):
        assert codec.read_explained(codec.explained_to_pb(explained)) == explained


def test_costs_that_were_not_compared_are_not_told_as_nothing() -> None:
    (placement, _) = codec.read_explained(codec.explained_to_pb(EXPLAINED)).placements
    compared, other = placement.considered
    assert isinstance(compared.costs, ExplainedCosts)
    assert compared.costs.score == 442.625
    assert other.costs is UNSET


def test_what_is_sent_is_bounded() -> None:
    many = replace(
        EXPLAINED, detail="x" * 10_000, placements=tuple(replace(PLACEMENT, attempt=number) for number in range(500))
    )
    read = codec.read_explained(codec.explained_to_pb(many))
    assert len(read.detail) == TEXT_LENGTH_MAX
    assert [each.attempt for each in read.placements] == list(range(500 - codec.PLACEMENTS_MAX, 500))


def considering(**changes: Any) -> ExplainedRequest:
    candidate = replace(PLACEMENT.considered[0], **changes)
    return replace(EXPLAINED, placements=(replace(PLACEMENT, considered=(candidate,)),))


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (replace(EXPLAINED, gateway=""), "gateway is not an id"),
        (replace(EXPLAINED, outcome="\x1b[2J"), "outcome"),
        (replace(EXPLAINED, detail="x" * 2000), "detail"),
        (replace(EXPLAINED, placements=(PLACEMENT,) * 100), "too many placements"),
        (replace(EXPLAINED, refusals=EXPLAINED.refusals * 100), "too many refusals"),
        (
            replace(EXPLAINED, placements=(replace(PLACEMENT, considered=PLACEMENT.considered * 50),)),
            "too many targets considered",
        ),
        (considering(standing="a b"), "standing"),
        (considering(costs=replace(PRICED, score=1.0)), "a score is not the sum of its parts"),
        (considering(costs=replace(PRICED, further={"a b": FIGURES["money"]})), "figure"),
        (
            considering(costs=replace(PRICED, further={f"f{n}": FIGURES["money"] for n in range(50)})),
            "too many figures",
        ),
        (considering(decode=ExplainedDecode("a b", 1, 1, 1)), "group"),
        (replace(EXPLAINED, shadow=replace(PLACEMENT, target="a b")), "target"),
    ],
)
def test_a_malformed_explanation_is_turned_away(told: ExplainedRequest, fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        codec.read_explained(pb.ExplainResponse(document=msgspec.json.encode(told)))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"gateway": "eu-1"}', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b" " * (codec.EXPLAINED_BYTES_MAX + 1), "too long"),
    ],
)
def test_what_is_no_explanation_is_turned_away(document: bytes, fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        codec.read_explained(pb.ExplainResponse(document=document))


def test_words_of_a_newer_version_are_passed_over() -> None:
    document = msgspec.json.encode({**msgspec.to_builtins(EXPLAINED), "mood": "good"})
    assert codec.read_explained(pb.ExplainResponse(document=document)) == EXPLAINED


def test_a_rank_of_a_replica_is_a_target_like_any() -> None:
    ranked = replace(EXPLAINED, replica="eu-a@1", placements=(replace(PLACEMENT, target="eu-a@1"),))
    assert codec.read_explained(codec.explained_to_pb(ranked)) == ranked


@asynccontextmanager
async def asking(peer: FakePeer) -> AsyncIterator[PeerExplainer]:
    peering = PeeringConfig(ping_timeout_ns=2_000 * MS)
    link = peer_link(peer.config(peer_spec("eu-1", EU)), peering)
    try:
        yield PeerExplainer({EU_1: link}, US_1)
    finally:
        await link.close()


async def test_a_peer_is_asked_in_our_name_and_its_side_comes_back() -> None:
    async with serve_fake_peer() as peer, asking(peer) as explainer:

        async def explained(request: pb.ExplainRequest, _: ExplainContext) -> pb.ExplainResponse:
            assert codec.read_explain_request(request) == (US_1, R_1)
            return codec.explained_to_pb(EXPLAINED)

        peer.explained = explained
        assert await explainer.ask(EU_1, R_1) == OtherSide("eu-1", EXPLAINED)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (grpc.StatusCode.NOT_FOUND, "it remembers no such request of ours"),
        (grpc.StatusCode.UNIMPLEMENTED, "its version cannot explain decisions"),
        (grpc.StatusCode.PERMISSION_DENIED, "it cannot be reached (PERMISSION_DENIED: no)"),
    ],
)
async def test_a_peer_that_says_nothing_useful_is_a_word_and_no_fault(status: grpc.StatusCode, problem: str) -> None:
    async with serve_fake_peer() as peer, asking(peer) as explainer:

        async def explained(_: pb.ExplainRequest, context: ExplainContext) -> pb.ExplainResponse:
            await context.abort(status, "no")

        peer.explained = explained
        assert await explainer.ask(EU_1, R_1) == OtherSide("eu-1", None, problem)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (pb.ExplainResponse(), "its answer is malformed: the explanation cannot be read: Input data was truncated"),
        (
            codec.explained_to_pb(replace(EXPLAINED, gateway="ap-1")),
            "its answer is about another request or from another gateway",
        ),
        (
            codec.explained_to_pb(replace(EXPLAINED, request_id="r-2")),
            "its answer is about another request or from another gateway",
        ),
    ],
)
async def test_an_answer_that_does_not_fit_the_question_is_not_believed(
    answer: pb.ExplainResponse, problem: str
) -> None:
    async with serve_fake_peer() as peer, asking(peer) as explainer:

        async def explained(_: pb.ExplainRequest, __: ExplainContext) -> pb.ExplainResponse:
            return answer

        peer.explained = explained
        assert await explainer.ask(EU_1, R_1) == OtherSide("eu-1", None, problem)


async def test_a_gateway_that_is_no_peer_any_more_is_said_to_be_none() -> None:
    answer = await PeerExplainer({}, US_1).ask(EU_1, R_1)
    assert answer == OtherSide("eu-1", None, "it is no peer of ours any more")
