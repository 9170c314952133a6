from __future__ import annotations

import io
import json
import tracemalloc

from gateway.config.sections import DecisionsConfig
from gateway.core.config import CoreConfig, OverflowMode, PlacementConfig
from gateway.core.effects import EndRequest, RecordShadow, RefuseForward
from gateway.core.events import (
    AssignmentApplied,
    Event,
    FirstToken,
    ForwardArrived,
    LegEnded,
    RequestArrived,
    TimePassed,
)
from gateway.core.vocabulary import (
    GatewayId,
    Hops,
    LegResult,
    ModelName,
    RefusalReason,
    ReplicaId,
    RequestId,
    ResidencyStamp,
)
from gateway.ground.config import LogFormat, LoggingConfig
from gateway.ground.logs import make_logger
from gateway.records.decisions import (
    SHADOWED_PAIRS_MAX,
    DecisionLog,
    ExplainedRequest,
    OtherSide,
    ShadowReport,
    decision_id,
    explain_both,
)
from gateway.request.legs import RanAt, RequestSummary
from tests.support.core import EU, MODEL, MS, SECOND, TENANT, US, Desk, desk, peer_spec, profile, rule

SHADOW = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))


class Watched:
    """A core whose every step the log sees."""

    def __init__(self, core: Desk, config: DecisionsConfig | None = None) -> None:
        self.desk = core
        self.stream = io.StringIO()
        logger = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        self.log = DecisionLog(GatewayId("us-1"), US, config or DecisionsConfig(), logger)
        peers = tuple(state.spec for state in core.core.peers)
        replicas = tuple(state.spec for state in core.core.replicas)
        self.log.on_step(0, AssignmentApplied(1, replicas, peers), [])

    def tell(self, event: Event) -> None:
        self.log.on_step(self.desk.now_ns, event, self.desk.tell(event))

    def free_replicas(self) -> None:
        self.log.on_step(self.desk.now_ns, TimePassed(), self.desk.probe())

    def ask(self, request_id: str, **details: str) -> None:
        self.tell(RequestArrived(profile(request_id, **details), self.desk.now_ns + 60 * SECOND))  # type: ignore[arg-type]

    def forward(self, request_id: str, **changes: object) -> None:
        stamp = ResidencyStamp(EU, TENANT, rule(US, EU), "digest")
        values = {
            "profile": profile(request_id),
            "deadline_ns": self.desk.now_ns + 60 * SECOND,
            "origin_gateway_id": GatewayId("eu-1"),
            "hops": Hops(0, 1),
            "stamp": stamp,
            **changes,
        }
        self.tell(ForwardArrived(**values))  # type: ignore[arg-type]

    def end(self, request_id: str, result: LegResult = LegResult.COMPLETED, attempt: int = 1) -> None:
        refusal = RefusalReason.BUSY if result is LegResult.REFUSED else None
        self.tell(LegEnded(RequestId(request_id), attempt, 1, result, refusal=refusal, detail="why"))

    def explain(self, wanted: str) -> ExplainedRequest:
        explained = self.log.explain(wanted, self.desk.now_ns)
        assert explained is not None
        return explained


def busy_us_with_eu(config: CoreConfig | None = None, rtt_ms: int = 70) -> Watched:
    core = desk(peers=[peer_spec("eu-1", EU)], config=config)
    core.probe(waiting=1)
    core.hear("eu-1", EU, rtt_ms=rtt_ms)
    return Watched(core)


def test_a_forward_is_remembered_with_what_spoke_for_and_against_each_target() -> None:
    watched = busy_us_with_eu()
    watched.ask("r-1")
    watched.desk.now_ns += 40 * MS
    watched.tell(FirstToken(RequestId("r-1"), 1, 1))
    watched.end("r-1")
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


def test_every_attempt_is_kept_with_its_end() -> None:
    watched = busy_us_with_eu()
    watched.ask("r-1")
    watched.end("r-1", LegResult.REFUSED)
    watched.tell(LegEnded(RequestId("r-1"), 1, 1, LegResult.FAILED, detail="a late word"))
    watched.free_replicas()
    results = [(each.attempt, each.result, each.refusal, each.detail) for each in watched.explain("r-1").placements]
    assert results == [(1, "refused", "busy", "why"), (2, "", "", "")]


def test_where_it_ran_comes_from_its_owner_and_never_from_another_request_of_the_same_id() -> None:
    watched = busy_us_with_eu()
    watched.ask("r-1")
    watched.end("r-1")
    (end,) = [effect for effect in watched.desk.effects if isinstance(effect, EndRequest)]
    summary = RequestSummary(ran_at=RanAt(ReplicaId("eu-1-r0"), EU))
    watched.ask("r-1")
    watched.log.on_finished(profile("r-1"), end, summary)
    assert watched.explain("r-1").ran_in == ""
    watched.end("r-1")
    *_, second = [effect for effect in watched.desk.effects if isinstance(effect, EndRequest)]
    watched.log.on_finished(profile("r-1"), second, summary)
    assert (watched.explain("r-1").ran_in, watched.explain("r-1").replica) == (EU.region, "eu-1-r0")


def test_a_decision_is_found_by_its_own_id_too() -> None:
    watched = busy_us_with_eu()
    watched.ask("a.1")
    assert watched.explain(decision_id(GatewayId("us-1"), RequestId("a.1"), 1)).request_id == "a.1"
    assert watched.log.explain("us-2:a.1.1", 0) is None, "another gateway's decision"
    assert watched.log.explain("us-1:b.1", 0) is None


def test_a_rejected_request_is_remembered_with_its_outcome() -> None:
    watched = Watched(desk())
    watched.ask("r-1", model="nobody's")
    explained = watched.explain("r-1")
    assert (explained.outcome, explained.placements) == ("rejected_unknown_model", ())


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
    for name in ("a", "b", "c"):
        watched.ask(name)
    assert len(watched.log) == 2
    assert watched.log.explain("a", 0) is None
    watched.end("a")
    assert watched.explain("c").request_id == "c"


def test_the_oldest_is_forgotten_when_they_are_too_large_and_the_count_of_bytes_stays_true() -> None:
    watched = Watched(desk(), DecisionsConfig(held_max_bytes=10_000))
    for number in range(50):
        watched.ask(f"r-{number}")
        watched.end(f"r-{number}")
    assert 1 < len(watched.log) < 10
    assert watched.log.size_bytes <= 10_000
    assert watched.log.size_bytes == sum(each.size_bytes for each in watched.log._records.values())
    assert watched.explain("r-49").outcome == "completed"


def test_bytes_are_rather_counted_too_high_than_too_low() -> None:
    watched = busy_us_with_eu()
    tracemalloc.start()
    try:
        for number in range(500):
            watched.ask(f"request-{number:058}")
            watched.desk.effects.clear()
            watched.end(f"request-{number:058}")
        watched.desk.effects.clear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(watched.log) == 500
    assert watched.log.size_bytes > held, (watched.log.size_bytes, held)
    assert watched.log.size_bytes < 3 * held


def test_shadow_overflow_is_remembered_counted_and_logged() -> None:
    watched = busy_us_with_eu(SHADOW)
    watched.ask("r-1")
    explained = watched.explain("r-1")
    assert explained.placements == ()
    assert explained.shadow is not None
    assert (explained.shadow.target, explained.shadow.reason) == ("eu-1", "remote_nearest")
    line = json.loads(watched.stream.getvalue())
    assert (line["event"], line["peer"], line["model"]) == ("shadow: would have been forwarded", "eu-1", MODEL)
    watched.desk.now_ns += 250 * MS
    watched.free_replicas()
    assert watched.log.describe()["shadow_overflow"] == [
        {
            "peer": "eu-1",
            "model": MODEL,
            "would_have_been_forwarded": 1,
            "placed_here_since": 1,
            "waited_on_mean_ms": 250.0,
        }
    ]


def test_shadow_lines_are_rare_and_say_how_many_they_stand_for() -> None:
    watched = busy_us_with_eu(SHADOW)
    for number in range(10):
        watched.ask(f"r-{number}")
        watched.desk.now_ns += 200 * MS
        watched.free_replicas()
        watched.end(f"r-{number}")
        watched.desk.probe(waiting=1)
        watched.desk.hear("eu-1", EU)
    lines = [json.loads(line) for line in watched.stream.getvalue().splitlines()]
    assert [line["since_the_last_line"] for line in lines] == [1, 5]


def test_pairs_of_shadow_overflow_are_bounded() -> None:
    report = ShadowReport(None)
    watched = busy_us_with_eu(SHADOW)
    watched.ask("r-1")
    (shadow,) = [effect for effect in watched.desk.effects if isinstance(effect, RecordShadow)]
    for number in range(SHADOWED_PAIRS_MAX + 10):
        report.recorded(ModelName(f"m-{number}"), shadow, 0)
    rows = report.describe()
    assert len(rows) == SHADOWED_PAIRS_MAX + 1
    assert (rows[-1]["model"], rows[-1]["would_have_been_forwarded"]) == ("other", 10)


async def test_both_sides_are_put_together_and_each_peer_is_asked_once() -> None:
    watched = busy_us_with_eu()
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


def test_no_tenant_and_no_prompt_is_kept() -> None:
    watched = Watched(desk())
    watched.ask("r-1", tenant="acme", prompt="a secret")
    watched.end("r-1")
    kept = repr(watched.log._records) + repr(watched.explain("r-1"))
    assert "r-1" in kept
    assert "acme" not in kept
    assert "secret" not in kept
