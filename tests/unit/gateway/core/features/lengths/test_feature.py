from __future__ import annotations

from msgspec.structs import replace

from gateway.core.features.lengths.feature import pools_by_length
from gateway.core.kernel import events
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import TooLong
from gateway.core.vocabulary import LegResult, Outcome, PoolStep, RefusalReason, ReplicaId, ReplicaObservation
from tests.support.core import EU, MODEL, MS, SECOND, Desk, desk, ended, of_kind, peer_spec, started
from tests.support.pools import LONG, LONG_POOL, POOLS, REPLICAS, SHORT, SHORT_POOL, ask, hear, member, pooled


def refused(
    core: Desk, request_id: str, limit: int | None = 8192, attempt: int = 1, asked: int | None = None
) -> list[str]:
    """End an attempt whose engine takes nothing so long. Returns the next target, or the outcome if the request
    ended."""
    told = TooLong(limit, asked)
    effects = core.finish(request_id, LegResult.TOO_LONG, attempt, too_long=told, detail="status 400")
    return [*started(effects), *(outcome for _, outcome in ended(effects))]


def leg_of(core: Desk, request_id: str) -> StartLeg:
    return [leg for leg in of_kind(StartLeg, core.effects) if leg.request_id == request_id][-1]


def test_what_an_engine_takes_no_more_of_goes_to_a_longer_pool_once() -> None:
    core = pooled()
    ask(core, "a", 7000)
    assert leg_of(core, "a").may_be_longer
    assert refused(core, "a") == ["l0"]
    leg = leg_of(core, "a")
    assert leg.attempt == 2
    assert not leg.may_be_longer, "the next refusal is the client's"
    assert leg.decision.pool is not None
    assert (leg.decision.pool.step, leg.decision.pool.refused_tokens) == (PoolStep.PREFERRED, 8192)
    assert refused(core, "a", 65_536, attempt=2) == [Outcome.REJECTED_TOO_LONG]
    assert pools_by_length(core.core).counts[MODEL, SHORT].refused == 1
    assert pools_by_length(core.core).counts[MODEL, LONG].refused == 0, "there is nothing longer"


def test_no_engine_is_blamed_for_it() -> None:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    for number in range(30):
        ask(core, str(number), 7000)
        refused(core, str(number))
        core.finish(str(number), attempt=2)
        core.now_ns += MS
        core.probe()
    assert {leg.target.id for leg in of_kind(StartLeg, core.effects) if leg.attempt == 1} == {"s0"}


def test_an_engine_that_takes_less_than_was_written_down_is_known_from_then_on() -> None:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    ask(core, "a", 7000)
    assert refused(core, "a", 4096) == ["l0"]
    assert pools_by_length(core.core).figures().learnt == {"s0": 4096}
    assert started(ask(core, "b", 7000)) == ["l0"]
    assert started(ask(core, "c", 3000)) == ["s0"]


def test_and_only_that_engine() -> None:
    core = pooled()
    ask(core, "a", 7000)
    wrong = leg_of(core, "a").target.id
    refused(core, "a", 4096)
    for number in range(4):
        ask(core, str(number), 7000)
    targets = {leg_of(core, str(number)).target.id for number in range(4)}
    assert targets == {"s0", "s1"} - {wrong}


def test_until_it_is_started_again() -> None:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    ask(core, "a", 7000)
    refused(core, "a", 4096)
    core.probe("s0", healthy=False)
    core.now_ns += MS
    core.probe("s0")
    assert pools_by_length(core.core).figures().learnt == {}
    assert started(ask(core, "b", 7000)) == ["s0"]


def test_whoever_waits_for_more_than_is_taken_after_all_waits_no_longer() -> None:
    """The longest engine turns out to take less: a waiting request that can go nowhere is refused at once."""
    core = pooled([member("l0", LONG)], [replace(LONG_POOL, threshold_tokens=65_536)])
    ask(core, "a", 60_000)
    core.probe("l0", waiting=1)
    ask(core, "b", 60_000)
    effects = core.finish("a", LegResult.CLIENT_ERROR, too_long=TooLong(32_768), detail="status 400")
    assert dict(ended(effects)) == {"a": Outcome.CLIENT_ERROR, "b": Outcome.REJECTED_TOO_LONG}


def test_an_engine_that_does_not_say_what_it_takes_is_taken_at_what_was_written_down() -> None:
    core = pooled()
    ask(core, "a", 7000)
    assert refused(core, "a", None) == ["l0"]
    assert pools_by_length(core.core).figures().learnt == {}


def test_a_limit_above_what_was_written_down_teaches_nothing() -> None:
    core = pooled()
    ask(core, "a", 7000)
    assert refused(core, "a", 10_000, asked=12_000) == ["l0"]
    assert pools_by_length(core.core).figures().learnt == {}


def test_a_peer_whose_engine_refuses_it_is_not_asked_again() -> None:
    core = pooled(REPLICAS[2:], peers=[peer_spec("gw-eu", EU)])
    hear(core, "gw-eu", EU, {SHORT_POOL: 1})
    core.probe("l0", waiting=1)
    assert started(ask(core, "a", 7000)) == ["gw-eu"]
    assert refused(core, "a", None) == []
    core.now_ns += MS
    assert started(core.probe("l0")) == ["l0"]


def test_a_peer_that_reckons_with_more_than_it_has_is_not_asked_again() -> None:
    core = desk(EU, replicas=0, peers=[peer_spec("gw-us", replace(EU))])
    hear(core, "gw-us", EU, {SHORT_POOL: 1, LONG_POOL: 1})
    assert started(ask(core, "a", 7000)) == ["gw-us"]
    effects = core.finish("a", LegResult.REFUSED, refusal=RefusalReason.TOO_LONG, detail="no pool here takes it")
    assert ended(effects) == [("a", Outcome.REJECTED_TOO_LONG)]


def test_counts_teach_the_estimator() -> None:
    core = pooled()
    for number in range(20):
        ask(core, str(number), 1000)
        core.finish(str(number), prompt_tokens=2000, output_tokens=10)
    assert ask(core, "a", 5000)
    assert leg_of(core, "a").target.id == "l0", "of two bytes a token"


def test_an_answer_that_the_pool_cut_was_in_the_wrong_one() -> None:
    core = pooled()
    ask(core, "a", 6000, None)
    assert leg_of(core, "a").target.id.startswith("s")
    core.finish("a", prompt_tokens=6000, output_tokens=2190)
    assert pools_by_length(core.core).counts[MODEL, SHORT].cut == 1
    ask(core, "b", 6000, 2190)
    core.finish("b", prompt_tokens=6000, output_tokens=2190)
    assert pools_by_length(core.core).counts[MODEL, SHORT].cut == 1, "the client asked for so many"


def test_preemptions_are_counted_by_pool_as_far_as_they_are_ours() -> None:
    core = pooled()

    def tell(total: int, *, healthy: bool = True) -> None:
        core.now_ns += MS
        seen = ReplicaObservation(ReplicaId("s0"), core.now_ns, healthy, preemptions=total)
        core.tell(events.ReplicasObserved((seen,)))

    assert core.core.replicas.preempted == {}
    for total in (7, 9):
        tell(total)
    assert core.core.replicas.preempted == {SHORT: 9}, "it was probed before it had any"
    tell(0, healthy=False)
    tell(9)
    tell(2)  # engine restarted
    tell(3)
    assert core.core.replicas.preempted == {SHORT: 10}


def test_nothing_is_learnt_or_counted_where_no_pool_has_a_threshold() -> None:
    core = pooled(pools=[replace(pool, threshold_tokens=0) for pool in POOLS])
    ask(core, "a", 1000)
    core.finish("a", prompt_tokens=2000, output_tokens=10)
    assert pools_by_length(core.core).token_budget.snapshot().ratios == ()
    assert pools_by_length(core.core).counts == {}
    assert core.wait(SECOND)
