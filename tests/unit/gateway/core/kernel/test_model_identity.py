"""Model identities: where the rest of an answer may go, and where a request may fail over to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel import events
from gateway.core.kernel.config import AttemptConfig, IdentityRule
from gateway.core.kernel.effects import EndRequest, RefuseForward, StartLeg
from gateway.core.vocabulary import (
    LegResult,
    ModelName,
    NeededIdentity,
    Outcome,
    RefusalReason,
    ReplicaRole,
    ReplicaSpec,
    RequestId,
    Standing,
)
from tests.support.core import (
    EU,
    MODEL,
    SECOND,
    Desk,
    desk,
    ended,
    forward,
    of_kind,
    peer_spec,
    profile,
    replica_spec,
    started,
)
from tests.support.disaggregated import pair, read, workers
from tests.support.pools import LONG, SHORT, asking, pooled

REST = replace(profile("r1", prompt="hello and what was said"), appends=True)
SAME = CoreConfig(attempt=AttemptConfig(model_identity=IdentityRule.SAME))


def spec(name: str, identity: str = "") -> ReplicaSpec:
    return replace(replica_spec(name), identity=identity)


def with_others(*others: ReplicaSpec, identity: str = "m@a", config: CoreConfig | None = None) -> Desk:
    """Gateway whose only available replica `first` has a request; `others` become available afterwards."""
    one = desk(replicas=[spec("first", identity), *others], config=config, probed=False)
    one.probe("first")
    assert started(one.ask("r1")) == ["first"]
    one.probe(*(each.replica_id for each in others))
    return one


def breaks(one: Desk) -> list[str]:
    one.first_token("r1")
    return started(one.finish("r1", LegResult.FAILED, detail="it broke off", remainder=REST))


def test_an_identity_matches_itself_and_an_unknown_one_as_the_rule_says() -> None:
    known, strict = NeededIdentity("m@a", takes_unknown=True), NeededIdentity("m@a", takes_unknown=False)
    assert [known.takes(each) for each in ("m@a", "m@b", "")] == [True, False, True]
    assert [strict.takes(each) for each in ("m@a", "m@b", "")] == [True, False, False]
    assert not any(map(NeededIdentity("", takes_unknown=False).takes, ("m@a", "")))


def test_an_answer_goes_on_where_the_model_is_the_same() -> None:
    one = with_others(spec("other", "m@b"), spec("same", "m@a"))
    assert breaks(one) == ["same"]
    assert "replica:other has m@b" in one.core.requests[RequestId("r1")].record.identity_mismatch


def test_an_unknown_identity_counts_as_the_same_unless_the_rule_asks_for_it() -> None:
    assert breaks(with_others(spec("other", "m@b"), spec("unknown"))) == ["unknown"]
    assert breaks(with_others(spec("other", "m@b"), identity="")) == ["other"]


@pytest.mark.parametrize("config", [None, SAME])
def test_an_answer_ends_rather_than_go_on_with_another_model(config: CoreConfig | None) -> None:
    one = desk(replicas=[spec("first", "m@a"), spec("other", "m@b")], config=config, probed=False)
    one.probe("first")
    one.ask("r1")
    one.tell(events.AssignmentApplied(2, (spec("other", "m@b"),), ()))
    one.probe("other")
    assert breaks(one) == []
    (end,) = of_kind(EndRequest, one.effects)
    assert end.outcome is Outcome.FAILED_MIDSTREAM
    assert "no other target" in end.detail
    assert "m@" not in end.detail, "clients are not told of identities"


def test_a_target_that_failed_is_better_than_another_model() -> None:
    one = with_others(spec("other", "m@b"))
    assert breaks(one) == []
    one.now_ns += 1
    assert started(one.probe()) == ["first"]


def test_a_rest_waits_for_the_target_that_failed_as_long_as_rests_may_wait() -> None:
    one = with_others(spec("other", "m@b"))
    assert breaks(one) == []
    wait_max_ns = CoreConfig().resume.wait_max_ns
    assert ended(one.wait(wait_max_ns - SECOND)) == []
    assert ended(one.wait(SECOND)) == [("r1", Outcome.FAILED_MIDSTREAM)]


def test_what_the_head_of_a_peers_answer_says_binds_the_rest() -> None:
    one = desk(replicas=[spec("a", "m@a"), spec("b", "m@b")], peers=[peer_spec("gw-eu", EU)], probed=False)
    one.hear("gw-eu", EU)
    assert started(one.ask("r1")) == ["gw-eu"]
    one.probe("a", "b")
    one.first_token("r1")
    assert started(one.finish("r1", LegResult.FAILED, remainder=REST, identity="m@b")) == ["b"]


def test_a_peer_of_another_identity_is_no_target_and_the_same_one_is_told_which() -> None:
    one = desk(
        replicas=[spec("first", "m@a")],
        peers=[peer_spec("gw-eu", EU), peer_spec("gw-eu2", EU)],
        probed=False,
    )
    one.probe("first")
    one.ask("r1")
    one.tell(events.AssignmentApplied(2, (), (peer_spec("gw-eu", EU), peer_spec("gw-eu2", EU))))
    one.hear("gw-eu", EU, identity="m@b")
    one.hear("gw-eu2", EU, identity="m@a")
    assert breaks(one) == ["gw-eu2"]
    order = of_kind(StartLeg, one.effects)[-1]
    assert order.identity == NeededIdentity("m@a", takes_unknown=True)
    peer = one.core.peers.get("gw-eu")
    assert peer is not None
    needed = one.core.requests[RequestId("r1")].request_class
    standing = one.core.peers.standing_for(peer, MODEL, needed.rule, identity=needed.identity)
    assert standing is Standing.OTHER_IDENTITY


def test_by_name_a_request_fails_over_to_any_model() -> None:
    one = with_others(spec("other", "m@b"))
    assert started(one.finish("r1", LegResult.FAILED)) == ["other"]


def test_where_it_is_asked_a_request_fails_over_only_to_the_same_model() -> None:
    one = with_others(spec("other", "m@b"), spec("unknown"), spec("same", "m@a"), config=SAME)
    assert started(one.finish("r1", LegResult.FAILED)) == ["same"]


def test_where_it_is_asked_an_unknown_identity_takes_over_nothing() -> None:
    one = with_others(spec("other"), identity="", config=SAME)
    assert ended(one.finish("r1", LegResult.FAILED)) == [("r1", Outcome.FAILED_BEFORE_FIRST_BYTE)]


@pytest.mark.parametrize("identity", ["", "m@a"])
def test_a_target_that_was_never_reached_binds_nothing(identity: str) -> None:
    one = with_others(spec("other", "m@b"), identity=identity, config=SAME)
    assert started(one.finish("r1", LegResult.FAILED, has_reached=False)) == ["other"]


def test_what_is_bound_stays_so_where_the_next_target_is_never_reached() -> None:
    one = with_others(spec("same", "m@a"), spec("other", "m@b"), config=SAME)
    assert started(one.finish("r1", LegResult.FAILED)) == ["same"]
    one.probe("first")
    assert "other" not in started(one.finish("r1", LegResult.FAILED, attempt=2, has_reached=False))


@pytest.mark.parametrize(
    "identity,others,named",
    [
        ("m@a", [""], ""),
        ("", ["m@b"], ""),
        ("", [""], ""),
        ("m@a", ["", "m@b"], "replica:first has m@a, but replica:other1 has m@b"),
    ],
)
def test_an_unknown_identity_is_not_told_as_another_model(identity: str, others: list[str], named: str) -> None:
    one = with_others(*(spec(f"other{at}", each) for at, each in enumerate(others)), identity=identity, config=SAME)
    record = one.core.requests[RequestId("r1")].record
    one.finish("r1", LegResult.FAILED)
    assert record.identity_mismatch == named


def test_a_peer_of_unknown_identity_is_not_told_as_another_model() -> None:
    one = desk(replicas=[spec("first", "m@a")], peers=[peer_spec("gw-eu", EU)], config=SAME, probed=False)
    one.probe("first")
    one.ask("r1")
    record = one.core.requests[RequestId("r1")].record
    one.hear("gw-eu", EU, identity="")
    one.finish("r1", LegResult.FAILED)
    assert record.identity_mismatch == ""


def test_a_model_may_have_a_rule_of_its_own() -> None:
    own = AttemptConfig(model_identity_by_model={MODEL: IdentityRule.SAME})
    assert own.identity_rule_of(MODEL) is IdentityRule.SAME
    assert own.identity_rule_of(ModelName("another")) is IdentityRule.SAME_NAME


def test_full_engines_bind_nothing() -> None:
    one = with_others(spec("other", "m@b"), config=SAME)
    assert started(one.finish("r1", LegResult.BUSY)) == ["other"]


def bound_forward(*, takes_unknown: bool) -> events.ForwardArrived:
    arrived = forward("r1")
    needed = NeededIdentity("m@a", takes_unknown=takes_unknown)
    return replace(arrived, profile=replace(arrived.profile, identity=needed))


def test_a_forward_is_served_by_the_identity_that_it_is_bound_to() -> None:
    one = desk(replicas=[spec("b", "m@b"), spec("a", "m@a")], peers=[peer_spec("gw-eu", EU)])
    assert started(one.tell(bound_forward(takes_unknown=True))) == ["a"]


@pytest.mark.parametrize(
    ("identity", "takes_unknown", "config"), [("m@b", True, None), ("", False, None), ("", True, SAME)]
)
def test_a_forward_bound_to_another_model_is_refused(
    identity: str, takes_unknown: bool, config: CoreConfig | None
) -> None:
    one = desk(replicas=[spec("b", identity)], peers=[peer_spec("gw-eu", EU)], config=config)
    (refusal,) = of_kind(RefuseForward, one.tell(bound_forward(takes_unknown=takes_unknown)))
    assert refusal.reason is RefusalReason.UNKNOWN_MODEL


def test_a_rest_is_refused_where_no_single_engine_has_the_model_and_appends() -> None:
    """The engine with the model of the rest does not append; the engine that appends has another model."""
    silent = replace(spec("a", "m@a"), appends=False)
    one = desk(replicas=[silent, spec("b", "m@b")], peers=[peer_spec("gw-eu", EU)])
    arrived = bound_forward(takes_unknown=True)
    arrived = replace(arrived, profile=replace(arrived.profile, appends=True))
    (refusal,) = of_kind(RefuseForward, one.tell(arrived))
    assert refusal.reason is RefusalReason.UNKNOWN_MODEL
    assert "the same model" in refusal.detail


def test_a_forward_is_refused_where_only_another_model_takes_its_length() -> None:
    replicas = [replace(spec("a", "m@a"), pool=SHORT), replace(spec("b", "m@b"), pool=LONG)]
    one = pooled(replicas, peers=[peer_spec("gw-eu", EU)])
    arrived = bound_forward(takes_unknown=True)
    arrived = replace(arrived, profile=replace(asking("r1", 20_000), identity=arrived.profile.identity))
    (refusal,) = of_kind(RefuseForward, one.tell(arrived))
    assert refusal.reason is RefusalReason.TOO_LONG


def test_a_learnt_identity_keeps_the_replica_and_its_legs() -> None:
    one = desk(replicas=[spec("a")])
    one.ask("r1")
    before = one.core.replicas.get("a")
    learnt = replace(spec("a"), roots={MODEL: "m@a"})
    one.tell(events.AssignmentApplied(2, (learnt,), ()))
    assert one.core.replicas.get("a") is before
    assert [each.identity for each in one.core.replicas.capacities()] == ["m@a"]
    assert ended(one.finish("r1")) == [("r1", Outcome.COMPLETED)]


def test_a_decode_worker_answers_as_the_prefill_worker_that_the_request_was_placed_at() -> None:
    """Engines of one pool may find the model under different paths; requests are placed by the prefill worker's."""
    learnt = [
        replace(each, roots={MODEL: "/mnt/p/m" if each.role is ReplicaRole.PREFILL else "/mnt/d/m"})
        for each in workers(decode=1)
    ]
    one = pair(learnt)
    prefill, decode = of_kind(StartLeg, read(one, "r1"))
    assert (prefill.answers_as, decode.answers_as) == ("", "/mnt/p/m")
