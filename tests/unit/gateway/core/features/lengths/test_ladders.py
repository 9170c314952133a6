from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.lengths.ladders import Ladder
from gateway.core.kernel.effects import PublishLoad, RefuseForward, StartLeg
from gateway.core.kernel.pools import PoolBounds, PoolFit
from gateway.core.vocabulary import (
    GatewayId,
    ModelCapacity,
    ModelName,
    Outcome,
    PoolChoice,
    PoolName,
    PoolSpec,
    PoolStep,
    RefusalReason,
    ResidencyStamp,
    TenantName,
)
from tests.support.core import (
    ANYWHERE,
    BOTH,
    EU,
    MODEL,
    MS,
    ONE_HOP,
    SECOND,
    US,
    desk,
    ended,
    of_kind,
    peer_spec,
    policy,
    rule,
    started,
)
from tests.support.pools import (
    LONG,
    LONG_POOL,
    POOLS,
    REPLICAS,
    SHORT,
    SHORT_POOL,
    ask,
    asking,
    assigned,
    hear,
    member,
    pooled,
)

S, M, L = (PoolName(name) for name in "sml")
THREE = (PoolBounds(S, 4096, 4000), PoolBounds(M, 16_384, 16_000), PoolBounds(L, 65_536, 0))


def fit(ladder: Ladder, tokens: int, firm: int | None = None) -> PoolFit:
    return ladder.fit_of(tokens, tokens if firm is None else firm, 0.25)


class TestALadder:
    @pytest.mark.parametrize(
        ("tokens", "preferred", "alternates"),
        [
            (1, (S,), (M, L)),
            (4000, (S,), (M, L)),
            (4001, (M,), (L, S)),  # fits the short pool, which is not meant for it
            (4097, (M,), (L,)),
            (16_001, (L,), (M,)),
            (65_536, (L,), ()),
            (65_537, (L,), ()),  # an estimate: the engine will count
            (65_536 * 5 // 4 + 1, (), ()),
        ],
    )
    def test_says_what_a_budget_is_meant_for_and_what_else_takes_it(
        self, tokens: int, preferred: tuple[PoolName, ...], alternates: tuple[PoolName, ...]
    ) -> None:
        found = fit(Ladder(THREE), tokens)
        assert (found.preferred, found.alternates) == (preferred, alternates)

    def test_what_is_asked_for_in_words_that_are_no_guess_decides_what_is_too_long(self) -> None:
        """The answer's length is a guess where the client states no maximum; an engine would end it where its context
        ends."""
        assert fit(Ladder(THREE), 1_000_000, firm=1000).preferred == (L,)
        assert fit(Ladder(THREE), 1_000_000, firm=100_000).preferred == ()

    def test_has_few_fits_however_many_budgets(self) -> None:
        ladder = Ladder(THREE)
        assert len({fit(ladder, tokens) for tokens in range(0, 100_000, 7)}) == 6

    def test_a_pool_without_a_limit_takes_all(self) -> None:
        ladder = Ladder([PoolBounds(S, 4096, 4096), PoolBounds(L, 0, 0)])
        assert fit(ladder, 10**9).preferred == (L,)

    def test_others_add_few_bounds_whatever_they_say(self) -> None:
        ladder = Ladder(THREE, [PoolBounds(PoolName("x"), tokens, 0) for tokens in range(1, 5000)])
        assert len({fit(ladder, tokens) for tokens in range(70_000)}) < 30

    def test_pools_that_nothing_tells_apart_are_as_one(self) -> None:
        twin = PoolBounds(PoolName("t"), 4096, 4000)
        assert fit(Ladder([*THREE, twin]), 10).preferred == (S, PoolName("t"))

    def test_who_does_not_say_what_they_take_is_given_what_all_take(self) -> None:
        unknown = ModelCapacity(MODEL, L, EU, 1, 1)
        ladder = Ladder(THREE)
        assert fit(ladder, 4096).is_taken_by(unknown)
        assert not fit(ladder, 4097).is_taken_by(unknown)


class TestPlacement:
    @pytest.mark.parametrize("placement", BOTH)
    def test_goes_by_the_total_budget(self, placement: object) -> None:
        core = pooled(placement=placement)  # type: ignore[arg-type]
        assert started(ask(core, "a", 200))[0].startswith("s")
        assert started(ask(core, "b", 9000)) == ["l0"]
        assert started(ask(core, "c", 200, 8192)) == ["l0"], "a short prompt with a long answer"
        (leg,) = of_kind(StartLeg, ask(core, "d", 100, 50))
        assert leg.decision.pool == PoolChoice(PoolStep.PREFERRED, SHORT, SHORT, 8000, 100, 50, False)

    @pytest.mark.parametrize("placement", BOTH)
    def test_spills_over_only_where_nobody_waits(self, placement: object) -> None:
        core = pooled(placement=placement)  # type: ignore[arg-type]
        core.probe("s0", "s1", waiting=1, healthy=True)
        if core.core.placer.takes_full_replicas:
            core.probe("s0", "s1", healthy=False)
        (leg,) = of_kind(StartLeg, ask(core, "a", 200))
        assert leg.target.id == "l0"
        assert leg.decision.pool is not None
        assert leg.decision.pool.step is not PoolStep.PREFERRED
        core.probe("l0", waiting=1, healthy=not core.core.placer.takes_full_replicas)
        assert started(ask(core, "b", 9000)) == []
        assert started(ask(core, "c", 200)) == [], "nobody is free"

    def test_whoever_is_meant_for_a_pool_goes_before_who_spills(self) -> None:
        core = pooled()
        core.probe(waiting=1)
        assert started(ask(core, "short", 200)) == []
        assert started(ask(core, "long", 9000)) == []
        core.now_ns += MS
        assert started(core.probe("l0")) == ["l0", "l0"], "the queue of the long pool is empty behind the first"
        legs = of_kind(StartLeg, core.effects)
        assert [leg.request_id for leg in legs] == ["long", "short"]
        assert [leg.decision.pool.step for leg in legs if leg.decision.pool] == [PoolStep.PREFERRED, PoolStep.SPILLED]

    def test_a_queue_may_be_let_grow_before_anybody_spills(self) -> None:
        config = CoreConfig()
        config = replace(config, placement=replace(config.placement, spill_queue_length=2))
        core = pooled(config=config)
        core.probe("s0", "s1", waiting=1)
        assert started(ask(core, "a", 200)) == []
        assert started(ask(core, "b", 200)) == ["l0"]

    def test_more_than_two_pools_are_taken_in_order(self) -> None:
        pools = tuple(
            PoolSpec(each.name, context_tokens_max=each.context_tokens_max, threshold_tokens=each.threshold_tokens)
            for each in THREE
        )
        core = pooled([member(name, PoolName(name)) for name in "sml"], pools)
        assert started(ask(core, "a", 10)) == ["s"]
        core.probe("s", waiting=1)
        assert started(ask(core, "b", 10)) == ["m"]
        core.probe("m", waiting=1)
        assert started(ask(core, "c", 10)) == ["l"]
        assert started(ask(core, "d", 5000)) == ["l"]

    def test_without_a_threshold_nothing_is_told_apart(self) -> None:
        core = pooled(pools=(replace(SHORT_POOL, threshold_tokens=0), LONG_POOL))
        legs = [of_kind(StartLeg, ask(core, str(number), 50_000))[0] for number in range(6)]
        assert {leg.target.id for leg in legs} == {"s0", "s1", "l0"}
        assert {leg.decision.pool for leg in legs} == {None}
        assert not any(leg.may_be_longer for leg in legs)

    def test_residency_comes_first(self) -> None:
        """The short pool is the only allowed one, so a request too long for it is too long here."""
        core = pooled([member("s0", SHORT), member("l0", LONG, EU)])
        core.tell(events.PolicyApplied(policy(US, process=rule(US))))
        assert started(ask(core, "a", 8100)) == ["s0"]
        assert ended(ask(core, "b", 30_000)) == [("b", Outcome.REJECTED_TOO_LONG)]

    def test_a_stored_response_wins_over_the_pool(self) -> None:
        core = pooled()
        ask(core, "a", 100)
        target = of_kind(StartLeg, core.effects)[0].target.id
        core.tell(events.ResponseStored(of_kind(StartLeg, core.effects)[0].request_id, 1, 1, "key"))
        core.finish("a")
        follower = replace(asking("b", 9000), follows="key")
        assert started(core.tell(events.RequestArrived(follower, 600 * SECOND))) == [target]

    def test_what_no_pool_takes_is_refused_at_once(self) -> None:
        core = pooled()
        (end,) = ended(ask(core, "a", 200_000))
        assert end == ("a", Outcome.REJECTED_TOO_LONG)
        assert ended(ask(core, "b", 200_000, model=ModelName("other"))) == [("b", Outcome.REJECTED_UNKNOWN_MODEL)]

    def test_an_estimate_that_is_hardly_over_is_for_the_engine_to_judge(self) -> None:
        assert started(ask(pooled(), "a", 70_000)) == ["l0"]

    def test_a_waiting_request_is_sorted_again_when_the_pools_change(self) -> None:
        core = pooled()
        core.probe(waiting=1)
        ask(core, "a", 4000)
        assigned(core, REPLICAS, (replace(SHORT_POOL, threshold_tokens=2000), LONG_POOL), version=2)
        core.now_ns += MS
        assert started(core.probe("s0", "s1")) == ["s0"], "spilled: its pool is the long one now"
        (leg,) = of_kind(StartLeg, core.effects)
        assert leg.decision.pool is not None
        assert (leg.decision.pool.preferred, leg.decision.pool.step) == (LONG, PoolStep.SPILLED)


class TestAPoolIsGone:
    @pytest.mark.parametrize("placement", BOTH)
    def test_the_short_one_the_long_one_stands_in(self, placement: object) -> None:
        core = pooled(placement=placement)  # type: ignore[arg-type]
        core.probe("s0", "s1", healthy=False)
        (leg,) = of_kind(StartLeg, ask(core, "a", 100))
        assert leg.target.id == "l0"
        assert leg.decision.pool is not None
        assert leg.decision.pool.step is PoolStep.STOOD_IN

    def test_the_short_one_and_the_long_one_has_a_queue(self) -> None:
        """Requests without a pool of their own do not wait for ever behind requests that have one."""
        core = pooled()
        core.probe("s0", "s1", healthy=False)
        core.probe("l0", waiting=1)
        ask(core, "short", 100)
        ask(core, "long", 9000)
        core.now_ns += MS
        core.probe("l0")
        assert of_kind(StartLeg, core.effects)[0].request_id == "short", "it came first"

    @pytest.mark.parametrize("placement", BOTH)
    def test_the_long_one_what_fits_elsewhere_goes_there_and_the_rest_waits(self, placement: object) -> None:
        core = pooled(placement=placement)  # type: ignore[arg-type]
        core.probe("l0", healthy=False)
        assert started(ask(core, "a", 8050))[0].startswith("s"), "above the threshold, and within the short context"
        assert started(ask(core, "b", 9000)) == []
        core.now_ns += MS
        assert started(core.wait(61 * SECOND)) == []
        assert ("b", Outcome.EXPIRED_IN_QUEUE) in ended(core.effects)

    def test_and_out_of_the_assignment_it_is_too_long(self) -> None:
        core = pooled()
        core.probe("l0", waiting=1)
        ask(core, "a", 13_000)
        effects = assigned(core, REPLICAS[:2], POOLS, version=2)
        assert ended(effects) == [("a", Outcome.REJECTED_TOO_LONG)]


class TestOtherGateways:
    PEER = peer_spec("gw-eu", EU)

    @pytest.mark.parametrize("placement", BOTH)
    def test_the_pool_it_is_meant_for_comes_before_another_one_here(self, placement: object) -> None:
        core = pooled(peers=[self.PEER], placement=placement)  # type: ignore[arg-type]
        hear(core, "gw-eu", EU, {SHORT_POOL: 1, LONG_POOL: 1})
        core.probe("s0", "s1", healthy=False)
        (leg,) = of_kind(StartLeg, ask(core, "a", 100))
        assert leg.target.id == "gw-eu"
        assert leg.budget_tokens == 200
        assert leg.decision.pool is not None
        assert leg.decision.pool.step is PoolStep.REMOTE

    def test_and_not_another_one_there(self) -> None:
        core = pooled(peers=[self.PEER])
        hear(core, "gw-eu", EU, {SHORT_POOL: 0, LONG_POOL: 1})
        core.probe("s0", "s1", waiting=1)
        assert started(ask(core, "a", 100)) == ["l0"], "here: there it would only wait for the short one"

    @pytest.mark.parametrize("placement", BOTH)
    @pytest.mark.parametrize("pool", [replace(LONG_POOL, context_tokens_max=0), SHORT_POOL])
    def test_who_does_not_say_that_they_take_so_much_are_not_asked(self, placement: object, pool: PoolSpec) -> None:
        core = pooled(peers=[self.PEER], placement=placement)  # type: ignore[arg-type]
        hear(core, "gw-eu", EU, {pool: 4})
        core.probe(healthy=False)
        assert started(ask(core, "long", 9000)) == []
        assert started(ask(core, "short", 100)) == ["gw-eu"], "that every pool takes"

    def test_their_pools_are_told_apart_where_we_have_none(self) -> None:
        core = desk(US, replicas=0, peers=[self.PEER])
        hear(core, "gw-eu", EU, {SHORT_POOL: 0, LONG_POOL: 1})
        assert started(ask(core, "long", 9000)) == ["gw-eu"]
        assert started(ask(core, "short", 100)) == []
        assert ended(ask(core, "longest", 200_000)) == [("longest", Outcome.REJECTED_TOO_LONG)]

    def test_a_queue_there_counts_by_pool(self) -> None:
        core = pooled(REPLICAS[2:], peers=[self.PEER])
        hear(core, "gw-eu", EU, {SHORT_POOL: 1, LONG_POOL: 1}, queues={SHORT: 0, LONG: 500})
        assert started(ask(core, "short", 100))[0] in ("l0", "gw-eu")
        core.probe("l0", waiting=1)
        assert started(ask(core, "another", 100)) == ["gw-eu"]
        assert started(ask(core, "long", 9000)) == []

    def test_a_model_s_context_is_its_longest_where_all_that_serve_it_state_one(self) -> None:
        core = pooled(REPLICAS[:1], peers=[self.PEER])
        context_max = core.core.context_max
        assert context_max(MODEL) == SHORT_POOL.context_tokens_max
        hear(core, "gw-eu", EU, {LONG_POOL: 1})
        assert context_max(MODEL) == LONG_POOL.context_tokens_max
        hear(core, "gw-eu", EU, {LONG_POOL: 1, replace(LONG_POOL, name=SHORT, context_tokens_max=0): 1}, sequence=2)
        assert context_max(MODEL) == 0
        assert context_max(ModelName("other")) == 0

    def test_what_is_told_of_our_own(self) -> None:
        core = pooled()
        core.probe(waiting=1)
        ask(core, "a", 100)
        ask(core, "b", 9000)
        published = of_kind(PublishLoad, core.wait(SECOND))[-1]
        told = {each.pool: (each.context_tokens_max, each.threshold_tokens) for each in published.report.capacities}
        assert told == {SHORT: (8192, 8000), LONG: (65_536, 0)}
        assert [(each.pool, each.length) for each in published.report.queues] == [(SHORT, 1), (LONG, 1), (None, 2)]

    def test_a_forward_is_reckoned_with_no_less_than_its_origin_does(self) -> None:
        core = pooled(peers=[self.PEER])
        hear(core, "gw-eu", EU, {LONG_POOL: 1})
        stamp = ResidencyStamp(EU, TenantName("default"), ANYWHERE, "digest")

        def forwarded(name: str, budget: int) -> events.ForwardArrived:
            asked = replace(asking(name, 100), budget_tokens=budget)
            return events.ForwardArrived(asked, 60 * SECOND, GatewayId("gw-eu"), ONE_HOP, stamp)

        assert started(core.tell(forwarded("a", 0)))[0].startswith("s")
        assert started(core.tell(forwarded("b", 9000))) == ["l0"]
        (refused,) = of_kind(RefuseForward, core.tell(forwarded("c", 200_000)))
        assert refused.reason is RefusalReason.TOO_LONG
