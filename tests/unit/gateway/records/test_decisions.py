from __future__ import annotations

import io
import json
import tracemalloc

import msgspec
import pytest
from msgspec.structs import replace

from gateway.config.sections import DecisionsConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import OverflowMode, PlacementConfig, PlacementPolicy
from gateway.core.kernel.effects import RecordShadow, RefuseForward
from gateway.core.kernel.events import LegEnded
from gateway.core.vocabulary import GatewayId, Hops, LegResult, ModelName, ReplicaId, RequestId
from gateway.records.decisions import (
    SHADOWED_PAIRS_MAX,
    DecisionLog,
    ExplainedCosts,
    ExplainedRequest,
    OtherSide,
    ShadowReport,
    _size_of,
    decision_id,
    explain_both,
)
from gateway.request.legs import RanAt, RequestSummary
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.page.rows import SLOW_MS, DecisionMark
from tests.support.core import BOTH, EU, LAYERED, MODEL, MS, US, Desk, desk, occupy, peer_spec
from tests.support.followed import FAILS, Followed

SHADOW = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))


class Watched(Followed):
    """A core whose every step the decision log observes."""

    def __init__(self, core: Desk, config: DecisionsConfig | None = None) -> None:
        super().__init__(core)
        self.stream = io.StringIO()
        logger = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        self.log = DecisionLog(
            GatewayId("us-1"), US, config or DecisionsConfig(), core.core, logger, requests=self.requests
        )
        self.finished.hand_to(self.log.on_finished)
        self.refused.append(self.log.on_refused)
        self.watch([self.log])

    def explain(self, wanted: str) -> ExplainedRequest:
        explained = self.log.explain(wanted, self.desk.now_ns)
        assert explained is not None
        return explained


def busy_us_with_eu(placement: PlacementPolicy = LAYERED, config: CoreConfig | None = None) -> Watched:
    core = desk(peers=[peer_spec("eu-1", EU)], config=config, placement=placement)
    occupy(core)
    core.hear("eu-1", EU, rtt_ms=70)
    return Watched(core)


def test_a_forward_is_remembered_with_what_spoke_for_and_against_each_target() -> None:
    watched = busy_us_with_eu()
    watched.ask("r-1")
    watched.desk.now_ns += 40 * MS
    watched.first_token("r-1")
    watched.end("r-1", detail="why")
    watched.finish("r-1")
    explained = watched.explain("r-1")
    (placement,) = explained.placements
    assert (placement.kind, placement.target, placement.region) == ("peer", "eu-1", EU.region)
    assert (placement.reason, placement.candidates, placement.replicas_here) == ("remote_nearest", 1, 2)
    assert (placement.result, placement.attempt) == ("completed", 1)
    standings = [(each.id, each.region, each.standing, each.rtt_ms) for each in placement.considered]
    assert standings == [
        ("eu-1", EU.region, "available", 70.0),
        ("r0", US.region, "pending", 0.0),
        ("r1", US.region, "pending", 0.0),
    ]
    assert (explained.outcome, explained.origin, explained.first_token_ms) == ("completed", "", 40.0)


def test_where_costs_were_compared_each_target_s_are_remembered_part_by_part() -> None:
    config = CoreConfig(placement=PlacementConfig(policy=PlacementPolicy.COST, delay_weight=0.3))
    core = desk(peers=[peer_spec("eu-1", EU)], config=config)
    core.hear("eu-1", EU, rtt_ms=70)
    watched = Watched(core)
    watched.ask("r-1")
    costs = {each.id: each.costs for each in watched.explain("r-1").placements[0].considered}
    bytes_ = watched.profiles["r-1"].prompt_bytes
    assert costs["r0"] == ExplainedCosts(bytes_ * 0.01, 0.0, 0.0, 0.0, bytes_ * 0.01)
    assert isinstance(costs["eu-1"], ExplainedCosts)
    assert costs["eu-1"].distance == pytest.approx(0.6 * 70)
    assert costs["eu-1"].score == pytest.approx(0.6 * 70 + bytes_ * 0.01)
    told = json.loads(msgspec.json.encode(watched.explain("r-1")))["placements"][0]["considered"][0]
    assert told["costs"]["score"] == pytest.approx(bytes_ * 0.01)


def test_where_none_were_compared_nothing_is_said_of_costs() -> None:
    watched = busy_us_with_eu(PlacementPolicy.PREFIX)
    watched.ask("r-1")
    assert b"costs" not in msgspec.json.encode(watched.explain("r-1"))


@pytest.mark.parametrize("placement", BOTH)
def test_every_attempt_is_kept_with_its_end(placement: PlacementPolicy) -> None:
    watched = busy_us_with_eu(placement)
    watched.ask("r-1")
    watched.end("r-1", LegResult.REFUSED, detail="why")
    watched.tell(LegEnded(RequestId("r-1"), 1, 1, LegResult.FAILED, detail="a late word"))
    watched.probe()
    results = [(each.attempt, each.result, each.refusal, each.detail) for each in watched.explain("r-1").placements]
    assert results == [(1, "refused", "busy", "why"), (2, "", "", "")]


def test_of_two_requests_with_one_id_the_later_is_told_whichever_is_finished_first() -> None:
    watched = Watched(desk())
    watched.serve("r-1")
    watched.ask("r-1")
    assert watched.explain("r-1").outcome == "", "the one that runs"
    watched.end("r-1")
    first, record = watched.profiles["r-1"], watched.requests[RequestId("r-1")]
    assert record.end is not None
    watched.desk.now_ns += 1
    watched.ask("r-1")
    watched.end("r-1")
    watched.finish("r-1", RanAt(ReplicaId("r1"), EU))
    watched.finished.on_finished(first, record.end, RequestSummary(ran_at=RanAt(ReplicaId("r0"), US)), record)
    assert (watched.explain("r-1").ran_in, watched.explain("r-1").replica) == (EU.region, "r1")


@pytest.mark.parametrize("failing", [1, 2])
def test_of_two_legs_each_is_a_placement_of_its_own_with_its_number(failing: int) -> None:
    watched = Watched(desk())
    watched.two_legs("r-1")
    watched.first_token("r-1")
    watched.two_ends("r-1", FAILS[failing])
    watched.finish("r-1")
    name = decision_id(GatewayId("us-1"), RequestId("r-1"), 1, 2)
    assert name == "us-1:r-1.1-2"
    explained = watched.explain(name)
    told = [(each.attempt, each.leg, each.target, each.result) for each in explained.placements]
    assert told == [(1, 1, "r0", FAILS[failing][0]), (1, 2, "r1", FAILS[failing][1])]


def test_an_only_leg_has_no_number() -> None:
    watched = Watched(desk())
    watched.ask("r-1")
    (placement,) = json.loads(msgspec.json.encode(watched.explain("r-1")))["placements"]
    assert "leg" not in placement


@pytest.mark.parametrize("placement", BOTH)
def test_a_decision_is_found_by_its_own_id_too(placement: PlacementPolicy) -> None:
    watched = busy_us_with_eu(placement)
    watched.ask("a.1")
    assert watched.explain(decision_id(GatewayId("us-1"), RequestId("a.1"), 1)).request_id == "a.1"
    assert watched.log.explain("us-2:a.1.1", 0) is None, "another gateway's decision"
    assert watched.log.explain("us-1:b.1", 0) is None


def test_a_rejected_request_is_remembered_with_its_outcome() -> None:
    watched = Watched(desk())
    watched.ask("r-1", model=ModelName("nobody's"))
    explained = watched.explain("r-1")
    assert (explained.outcome, explained.placements) == ("rejected_unknown_model", ())


def test_a_request_that_waits_tells_for_whom_and_one_that_ended_why() -> None:
    core = desk(replicas=1)
    core.probe(healthy=False)
    watched = Watched(core)
    watched.ask("r-1")
    waiting = watched.explain("r-1")
    assert (waiting.outcome, waiting.detail) == ("", "replica:r0 (unhealthy)")
    core.probe()
    assert watched.explain("r-1").detail == ""
    watched.end("r-1", detail="done")
    assert watched.explain("r-1").outcome == "completed"


def test_a_forward_is_explained_to_its_origin_alone() -> None:
    watched = Watched(desk(peers=[peer_spec("eu-1", EU)]))
    watched.forward("f-1")
    watched.ask("r-1")
    explained = watched.log.explain_to(GatewayId("eu-1"), RequestId("f-1"), 0)
    assert explained is not None
    assert explained.origin == "eu-1"
    assert watched.log.explain_to(GatewayId("ap-1"), RequestId("f-1"), 0) is None
    assert watched.log.explain_to(GatewayId("eu-1"), RequestId("r-1"), 0) is None
    assert watched.log.explain_to(GatewayId("eu-1"), RequestId("nothing"), 0) is None


def test_a_refused_forward_keeps_its_refusals_when_it_comes_again() -> None:
    watched = Watched(desk(peers=[peer_spec("eu-1", EU)]))
    watched.forward("f-1", hops=Hops(0, 2))
    watched.forward("f-1", hops=Hops(0, 3))
    assert [each.reason for each in watched.explain("f-1").refusals] == ["hop_limit", "hop_limit"]
    watched.forward("f-1")
    explained = watched.explain("f-1")
    assert len(explained.refusals) == 2
    assert [each.kind for each in explained.placements] == ["replica"]


def test_a_refusal_of_a_double_does_not_hide_the_request_that_runs() -> None:
    watched = Watched(desk(peers=[peer_spec("eu-1", EU)]))
    watched.ask("r-1")
    watched.desk.now_ns += 1
    watched.forward("r-1")
    assert isinstance(watched.desk.effects[-1], RefuseForward)
    explained = watched.explain("r-1")
    assert (explained.origin, len(explained.placements), explained.refusals) == ("", 1, ())


def test_the_refusals_kept_are_bounded() -> None:
    watched = Watched(desk(peers=[peer_spec("eu-1", EU)]))
    for _ in range(20):
        watched.forward("f-1", hops=Hops(0, 2))
    assert len(watched.explain("f-1").refusals) == 8


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    watched = Watched(desk(), DecisionsConfig(requests_max=2))
    watched.serve("a", "b", "c")
    assert len(watched.log) == 2
    assert watched.log.explain("a", 0) is None
    assert watched.explain("c").request_id == "c"


def test_the_oldest_is_forgotten_when_they_are_too_large_and_the_count_of_bytes_stays_true() -> None:
    watched = Watched(desk(), DecisionsConfig(held_max_bytes=10_000))
    watched.serve(*(f"r-{number}" for number in range(50)))
    assert 1 < len(watched.log) < 10
    assert watched.log.size_bytes <= 10_000
    assert watched.log.size_bytes == sum(_size_of(each.record) for each in watched.log._remembered.values())
    assert watched.explain("r-49").outcome == "completed"


@pytest.mark.parametrize("placement", BOTH)
def test_bytes_are_rather_counted_too_high_than_too_low(placement: PlacementPolicy) -> None:
    watched = busy_us_with_eu(placement)
    tracemalloc.start()
    try:
        for number in range(500):
            watched.serve(f"request-{number:058}")
            watched.desk.effects.clear()
        watched.desk.effects.clear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(watched.log) == 500
    assert watched.log.size_bytes > held, (watched.log.size_bytes, held)
    assert watched.log.size_bytes < 3 * held


@pytest.mark.parametrize("placement", BOTH)
def test_shadow_overflow_is_remembered_counted_and_logged(placement: PlacementPolicy) -> None:
    watched = busy_us_with_eu(placement, SHADOW)
    watched.ask("r-1")
    explained = watched.explain("r-1")
    assert explained.placements == ()
    assert explained.shadow is not None
    assert (explained.shadow.target, explained.shadow.reason) == ("eu-1", "remote_nearest")
    line = json.loads(watched.stream.getvalue())
    assert (line["event"], line["peer"], line["model"]) == ("shadow_forward", "eu-1", MODEL)
    watched.desk.now_ns += 250 * MS
    watched.probe()
    watched.end("r-1")
    watched.finish("r-1")
    assert watched.log.describe()["shadow_overflow"] == [
        {
            "peer": "eu-1",
            "model": MODEL,
            "would_have_been_forwarded": 1,
            "placed_here_since": 1,
            "waited_on_mean_ms": 250.0,
        }
    ]


def test_a_placement_before_shadow_overflow_was_recorded_does_not_count_as_one_since() -> None:
    report = ShadowReport(None)
    watched = busy_us_with_eu(LAYERED, SHADOW)
    watched.ask("r-1")
    (shadow,) = [effect for effect in watched.desk.effects if isinstance(effect, RecordShadow)]
    late = replace(shadow, decision=replace(shadow.decision, waited_ns=5))
    report.placed(MODEL, late, shadow.decision)
    assert report.describe() == []
    report.placed(MODEL, shadow, late.decision)
    assert [row["placed_here_since"] for row in report.describe()] == [1]


@pytest.mark.parametrize("placement", BOTH)
def test_shadow_lines_are_rare_and_say_how_many_they_stand_for(placement: PlacementPolicy) -> None:
    watched = busy_us_with_eu(placement, SHADOW)
    for number in range(10):
        watched.ask(f"r-{number}")
        watched.desk.now_ns += 200 * MS
        watched.probe()
        watched.end(f"r-{number}")
        occupy(watched.desk)
        watched.desk.hear("eu-1", EU)
    lines = [json.loads(line) for line in watched.stream.getvalue().splitlines()]
    assert [line["count"] for line in lines] == [1, 5]


@pytest.mark.parametrize("placement", BOTH)
def test_pairs_of_shadow_overflow_are_bounded(placement: PlacementPolicy) -> None:
    report = ShadowReport(None)
    watched = busy_us_with_eu(placement, SHADOW)
    watched.ask("r-1")
    (shadow,) = [effect for effect in watched.desk.effects if isinstance(effect, RecordShadow)]
    for number in range(SHADOWED_PAIRS_MAX + 10):
        report.recorded(ModelName(f"m-{number}"), shadow, 0)
    rows = report.describe()
    assert len(rows) == SHADOWED_PAIRS_MAX + 1
    assert (rows[-1]["model"], rows[-1]["would_have_been_forwarded"]) == ("other", 10)


@pytest.mark.parametrize("placement", BOTH)
async def test_both_sides_are_put_together_and_each_peer_is_asked_once(placement: PlacementPolicy) -> None:
    watched = busy_us_with_eu(placement)
    watched.ask("r-1")
    watched.end("r-1", LegResult.REFUSED)
    asked: list[tuple[str, str]] = []

    async def ask_peer(peer: GatewayId, request_id: RequestId) -> OtherSide:
        asked.append((peer, request_id))
        return OtherSide(peer, None, "it is on fire")

    explanation = await explain_both(watched.log, ask_peer, "r-1", 0)
    assert explanation is not None
    assert [each.problem for each in explanation.there] == ["it is on fire"]
    assert asked == [("eu-1", "r-1")]
    assert await explain_both(watched.log, ask_peer, "nothing", 0) is None


def marks(watched: Watched) -> dict[str, list[DecisionMark]]:
    latest = watched.log.latest(10, watched.desk.now_ns)
    return {each.request.request_id: each.marks for each in latest}


def test_what_operators_filter_by_is_marked() -> None:
    watched = busy_us_with_eu()
    watched.ask("forwarded")
    watched.desk.now_ns += 40 * MS
    watched.first_token("forwarded")
    watched.end("forwarded")
    watched.finish("forwarded")
    watched.ask("slow")
    watched.desk.now_ns += (SLOW_MS + 1) * MS
    watched.first_token("slow")
    watched.end("slow")
    watched.finish("slow")
    watched.ask("rejected", model="unknown")
    watched.finish("rejected")
    found = marks(watched)
    assert found["forwarded"] == [DecisionMark.FORWARDED]
    assert DecisionMark.SLOW in found["slow"]
    assert found["rejected"] == [DecisionMark.REFUSED]


def test_marked_ones_are_among_the_latest_however_many_came_since() -> None:
    watched = Watched(desk())
    watched.ask("rejected", model="unknown")
    watched.finish("rejected")
    for number in range(30):
        watched.ask(f"r-{number}")
        watched.end(f"r-{number}")
        watched.finish(f"r-{number}")
    found = [each.request.request_id for each in watched.log.latest(3, watched.desk.now_ns, 5)]
    assert found == ["r-29", "r-28", "r-27", "rejected"]
    assert len(watched.log.latest(3, watched.desk.now_ns)) == 3
