"""Limits as one gateway keeps them, given other gateways' reports. Several gateways together:
tests/property/test_limits.py."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.limits.config import LimitScope, SharesConfig
from gateway.core.features.limits.feature import limits_of
from gateway.core.features.limits.tenant_meter import Divided, TenantMeter
from gateway.core.kernel.effects import EndRequest, PublishLoad
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.tenant_config import DEFAULT_TENANT, TenantConfig
from gateway.core.vocabulary import LegResult, Outcome, PeerObservation, PeerSpec, RequestId, TenantName, TenantUse
from gateway.peers.codec import read_load
from tests.hostile.peers import beat
from tests.hostile.tenants_told import USE_CASES, UseCase
from tests.support.core import (
    AP,
    EU,
    MS,
    SECOND,
    TENANT,
    US,
    Desk,
    desk,
    forward,
    of_kind,
    peer_spec,
    policy,
    profile,
    rule,
)
from tests.support.sharing import asked, heard, limited

OTHER = TenantName("other")
NUMBERS = count(1)


def alone(config: CoreConfig) -> Desk:
    return desk(config=config)


def with_peers(config: CoreConfig, *peers: PeerSpec) -> Desk:
    """Gateway that has heard a report without usage from each peer."""
    one = desk(config=config, peers=peers or (peer_spec("gw-eu", EU), peer_spec("gw-jp", AP)))
    for each in peers or one.core.peers:
        spec = each if isinstance(each, PeerSpec) else each.spec
        heard(one, spec.gateway_id, spec.place)
    return one


def listen(one: Desk, duration_ns: int) -> None:
    """Let time pass while each peer repeats its last report."""
    for _ in range(duration_ns // (100 * MS)):
        one.wait(100 * MS)
        for state in list(one.core.peers):
            assert state.report is not None
            heard(one, state.spec.gateway_id, state.spec.place, *state.report.uses)


def concurrency(one: Desk) -> Divided:
    meter = limits_of(one.core).meter_of(TENANT)
    assert meter is not None
    assert meter.concurrency is not None
    return meter.concurrency


HONEST = ("gw-jp", AP)
LIMITS: dict[str, Any] = {"concurrency_max": 60, "requests_per_minute": 600, "tokens_per_minute": 60_000}


@pytest.mark.parametrize("case", [case for case in USE_CASES if case.believed], ids=lambda case: case.name)
class TestALiar:
    """One of two peers reports false usage; the other reports none."""

    def lie(self, one: Desk, case: UseCase) -> None:
        message = beat(next(NUMBERS), {"tenant_uses": list(case.uses), "age_us": case.age_us})
        report, age_ns = read_load(message)
        observation = PeerObservation(report, one.now_ns - age_ns, one.now_ns, 50 * MS, 50 * MS)
        one.tell(events.PeersObserved((observation,)))

    def hear(self, one: Desk, case: UseCase, duration_ns: int) -> None:
        for _ in range(duration_ns // SECOND):
            one.wait(SECOND)
            self.lie(one, case)
            heard(one, *HONEST)

    def test_each_limit_keeps_its_floor_at_once_and_for_as_long_as_it_lies(self, case: UseCase) -> None:
        one = with_peers(limited(**LIMITS), peer_spec("eu-1", EU), peer_spec(*HONEST))
        self.lie(one, case)
        ends = [asked(one, tokens=10)]
        for _ in range(5):
            meter = limits_of(one.core).meter_of(TENANT)
            assert meter is not None
            floors = {kind: int(limit.limit * 0.2) // 3 for kind, limit in meter.limits()}
            assert all(floors[kind] <= limit.share <= limit.limit for kind, limit in meter.limits())
            self.hear(one, case, 3 * SECOND)
            ends.append(asked(one, tokens=10))
        assert ends[:4] == [None] * 4

    def test_nobody_else_is_known_or_let_in_or_kept_out_by_it(self, case: UseCase) -> None:
        one = with_peers(limited(**LIMITS), peer_spec("eu-1", EU), peer_spec(*HONEST))
        self.hear(one, case, 5 * SECOND)
        assert len(limits_of(one.core)) == 0
        assert all(
            asked(one, tenant=TenantName(each.tenant.strip() + "x"), tokens=10) is None for each in case.uses[:9]
        )
        assert limits_of(one.core).told == ()

    def test_once_it_is_gone_all_of_the_limit_is_had_again(self, case: UseCase) -> None:
        one = with_peers(limited(**LIMITS), peer_spec("eu-1", EU), peer_spec(*HONEST))
        self.hear(one, case, 5 * SECOND)
        let_in = 0
        for second in range(90):
            one.wait(SECOND)
            heard(one, *HONEST)
            if second >= 60:
                let_in += sum(asked(one, tokens=1) is None for _ in range(3))
        assert let_in >= 60


class TestWithoutOthers:
    def test_as_many_are_let_in_as_may_be_under_way(self) -> None:
        one = alone(limited(concurrency_max=2))
        assert asked(one, request_id="a") is None
        assert asked(one, request_id="b") is None
        end = asked(one)
        assert end is not None
        assert (end.outcome, end.detail) == (
            Outcome.REJECTED_TENANT_CONCURRENCY,
            "2 requests are under way (limit 2)",
        )
        assert end.retry_after_ns == SECOND
        one.first_token("a")
        one.finish("a")
        assert asked(one) is None

    @pytest.mark.parametrize("result", [LegResult.CLIENT_ERROR, LegResult.CANCELLED])
    def test_however_one_ends_it_makes_room(self, result: LegResult) -> None:
        one = alone(limited(concurrency_max=1))
        asked(one, request_id="a")
        one.finish("a", result)
        assert asked(one) is None

    def test_requests_are_let_in_as_the_minute_allows_and_the_wait_is_honest(self) -> None:
        one = alone(limited(requests_per_minute=2))
        assert [asked(one) for _ in range(2)] == [None, None]
        end = asked(one)
        assert end is not None
        assert (end.outcome, end.retry_after_ns) == (Outcome.REJECTED_TENANT_REQUEST_RATE, 30 * SECOND)
        one.wait(end.retry_after_ns - 1)
        assert asked(one) is not None
        one.wait(1)
        assert asked(one) is None

    def test_tokens_are_set_aside_and_replaced_by_what_was_used(self) -> None:
        one = alone(limited(tokens_per_minute=1000))
        assert asked(one, request_id="a", tokens=990) is None
        end = asked(one, tokens=600)
        assert end is not None
        assert end.outcome is Outcome.REJECTED_TENANT_TOKEN_RATE
        one.first_token("a")
        (ended,) = [each for each in one.finish("a") if isinstance(each, EndRequest)]
        assert ended.is_charged, "its use is to be told"
        one.tell(events.TokensSettled(RequestId("a"), 100))
        assert asked(one, tokens=600) is None

    def test_a_client_is_told_the_earliest_time_at_which_its_request_could_pass(self) -> None:
        """Tokens reserved for a running request may be refunded; used tokens return only with time."""
        one = alone(limited(tokens_per_minute=1000))
        assert asked(one, request_id="a", tokens=590) is None
        assert asked(one, request_id="b", tokens=290) is None
        waits = [asked(one, tokens=500)]
        one.tell(events.TokensSettled(RequestId("a"), 600))
        waits.append(asked(one, tokens=500))
        one.tell(events.TokensSettled(RequestId("b"), 300))
        waits.append(asked(one, tokens=500))
        assert [end and round(end.retry_after_ns / SECOND) for end in waits] == [1, 6, 24]

    def test_what_was_used_beyond_is_paid_off_before_anything_else(self) -> None:
        one = alone(limited(tokens_per_minute=60))
        asked(one, request_id="a", tokens=1)
        one.tell(events.TokensSettled(RequestId("a"), 120))
        end = asked(one, tokens=0)
        assert end is not None
        assert 60 * SECOND < end.retry_after_ns < 65 * SECOND

    def test_without_a_maximum_as_much_is_set_aside_as_was_said(self) -> None:
        one = alone(limited(SharesConfig(output_tokens_reserved=40), tokens_per_minute=60))
        assert asked(one) is None
        assert asked(one, tokens=30) is not None

    def test_a_tenant_that_is_not_named_has_the_limits_of_default(self) -> None:
        config = CoreConfig(
            tenants={
                DEFAULT_TENANT: TenantConfig(concurrency_max=1),
                OTHER: TenantConfig(concurrency_max=2),
            }
        )
        one = alone(config)
        strangers = [asked(one, tenant=TenantName("x")) for _ in range(2)]
        others = [asked(one, tenant=OTHER) for _ in range(3)]
        assert [each is None for each in strangers + others] == [True, False, True, True, False]

    def test_a_tenant_without_limits_leaves_no_trace(self) -> None:
        one = alone(CoreConfig(tenants={OTHER: TenantConfig(concurrency_max=1)}))
        assert [asked(one) for _ in range(50)] == [None] * 50
        assert len(limits_of(one.core)) == 0
        assert limits_of(one.core).told == ()

    def test_what_was_turned_away_for_another_reason_has_taken_nothing(self) -> None:
        one = alone(limited(requests_per_minute=1))
        one.tell(events.DrainRequested())
        assert asked(one).outcome is Outcome.REJECTED_DRAINING  # type: ignore[union-attr]
        assert limits_of(one.core).meter_of(TENANT) is None

    def test_a_forward_counts_where_it_came_in_and_not_here(self) -> None:
        one = with_peers(limited(concurrency_max=3))
        one.tell(forward("theirs"))
        assert "theirs" in one.core.requests
        assert limits_of(one.core).meter_of(TENANT) is None
        assert [asked(one) is None for _ in range(2)] == [True, False]

    def test_a_request_that_ends_after_its_limits_were_lifted_is_counted_out(self) -> None:
        one = alone(limited(concurrency_max=2))
        one.tell(events.RequestArrived(profile("q", tenant=TENANT), one.now_ns + 60 * SECOND))
        meter = limits_of(one.core).meter_of(TENANT)
        assert meter is not None
        assert meter.running == 1
        one.tell(events.ConfigApplied(CoreConfig()))
        one.tell(events.RequestAbandoned(RequestId("q")))
        assert meter.running == 0

    def test_new_limits_hold_for_what_comes_next(self) -> None:
        one = alone(limited(concurrency_max=1))
        asked(one, request_id="a")
        one.tell(events.ConfigApplied(limited(concurrency_max=3)))
        assert [asked(one) is None for _ in range(3)] == [True, True, False]
        one.tell(events.ConfigApplied(CoreConfig()))
        assert asked(one) is None
        one.first_token("a")
        one.finish("a")

    def test_of_too_many_tenants_one_that_is_idle_is_forgotten(self) -> None:
        config = CoreConfig(
            tenants={DEFAULT_TENANT: TenantConfig(concurrency_max=1)}, shares=SharesConfig(tenants_max=3)
        )
        one = alone(config)
        asked(one, tenant=TenantName("busy"), request_id="busy")
        for number in range(20):
            asked(one, tenant=TenantName(f"t{number}"), request_id=f"r{number}")
            one.first_token(f"r{number}")
            one.finish(f"r{number}")
        assert len(limits_of(one.core)) == 3
        assert asked(one, tenant=TenantName("busy")) is not None

    def test_who_asks_for_nothing_is_forgotten_and_nobody_is_woken_for_it(self) -> None:
        one = alone(limited(concurrency_max=1))
        asked(one, request_id="a")
        one.first_token("a")
        one.finish("a")
        one.wait(20 * SECOND)
        assert list(limits_of(one.core)) == []
        assert one.core.next_wakeup_ns() is None or one.core.next_wakeup_ns() > one.now_ns + 900 * MS  # type: ignore[operator]


class TestWithOthers:
    def test_while_all_is_idle_each_has_an_equal_part_at_once(self) -> None:
        one = with_peers(limited(concurrency_max=6))
        assert [asked(one) is None for _ in range(3)] == [True, True, False]

    def test_who_asks_for_more_has_it_once_the_others_have_heard(self) -> None:
        one = with_peers(limited(concurrency_max=6))
        end = [asked(one) for _ in range(6)][-1]
        assert end is not None
        assert end.detail == "2 requests are under way (limit 6, of which this gateway's share is 2 at present)"
        assert SECOND < end.retry_after_ns < 2 * SECOND
        listen(one, end.retry_after_ns)
        assert [asked(one) is None for _ in range(5)] == [True] * 4 + [False]

    def test_what_is_asked_for_is_told(self) -> None:
        one = with_peers(limited(concurrency_max=6, requests_per_minute=600, tokens_per_minute=6000))
        for number in range(3):
            asked(one, request_id=f"{number}", tokens=8)
        said = [report.report.uses for report in of_kind(PublishLoad, one.wait(200 * MS))]
        use = said[0][0]
        assert (use.tenant, use.running, use.demand, use.requests_per_minute) == (TENANT, 2, 3, 36)
        assert use.tokens_per_minute > 0

    def test_what_is_told_is_forgotten_when_nothing_is_asked_for_any_more(self) -> None:
        one = with_peers(limited(concurrency_max=6))
        asked(one, request_id="a")
        one.first_token("a")
        one.finish("a")
        reports = of_kind(PublishLoad, one.wait(20 * SECOND))
        assert reports[0].report.uses
        assert reports[-1].report.uses == ()

    def test_who_has_it_all_gives_way_at_once_to_whoever_comes(self) -> None:
        one = with_peers(limited(concurrency_max=6))
        for _ in range(6):
            asked(one)
        one.wait(SECOND)
        assert concurrency(one).share == 2, "nobody has said anything since"
        listen(one, SECOND)
        assert concurrency(one).share == 6
        heard(one, "gw-eu", EU, TenantUse(TENANT, 1, 6))
        one.wait(100 * MS)
        assert concurrency(one).share == 3

    def test_what_others_still_have_under_way_is_waited_for(self) -> None:
        one = with_peers(limited(concurrency_max=6))
        for _ in range(6):
            asked(one)
        heard(one, "gw-eu", EU, TenantUse(TENANT, 5, 6))
        listen(one, SECOND)
        assert concurrency(one).share == 1
        heard(one, "gw-eu", EU, TenantUse(TENANT, 3, 6))
        one.wait(100 * MS)
        assert concurrency(one).share == 3

    def test_a_newcomer_has_its_floor_at_once_whatever_others_say(self) -> None:
        one = with_peers(limited(concurrency_max=60))
        heard(one, "gw-eu", EU, TenantUse(TENANT, 10**9, 10**9, 10**9, 10**9))
        heard(one, "gw-jp", AP, TenantUse(TENANT, 10**9, 10**9, 10**9, 10**9))
        assert [asked(one) is None for _ in range(6)] == [True] * 4 + [False] * 2
        listen(one, 4 * SECOND)
        assert concurrency(one).share == 4

    def test_buckets_are_divided_likewise(self) -> None:
        one = with_peers(limited(requests_per_minute=6))
        assert [asked(one) is None for _ in range(3)] == [True, True, False]
        listen(one, SECOND)
        end = asked(one)
        assert end is not None
        assert 8 * SECOND < end.retry_after_ns < 10 * SECOND, "it is refilled by six a minute now"

    def test_a_share_of_nothing_says_when_there_may_be_one(self) -> None:
        one = with_peers(limited(requests_per_minute=1))
        heard(one, "gw-eu", EU, TenantUse(TENANT, requests_per_minute=1))
        ends = [asked(one) for _ in range(2)]
        assert ends[-1] is not None
        assert 0 < ends[-1].retry_after_ns <= 60 * SECOND

    def test_what_a_silent_one_said_stays_reserved_and_then_is_divided(self) -> None:
        one = with_peers(limited(concurrency_max=6), peer_spec("gw-eu", EU))
        heard(one, "gw-eu", EU, TenantUse(TENANT, 3, 3))
        shares = []
        for _ in range(8):
            for _ in range(6):
                asked(one)
            one.wait(2 * SECOND)
            shares.append(concurrency(one).share)
        assert shares == [1] * 7 + [6], "it does not grow while somebody may not have heard"

    def test_one_that_was_not_heard_yet_is_waited_for_a_little(self) -> None:
        one = desk(config=limited(concurrency_max=6), peers=(peer_spec("gw-eu", EU),))
        assert [asked(one) is None for _ in range(2)] == [True, False]
        one.wait(2900 * MS)
        assert concurrency(one).share == 1
        one.wait(200 * MS)
        assert concurrency(one).share > 1

    def test_who_has_just_begun_grows_when_the_others_have_heard_of_it(self) -> None:
        one = desk(config=limited(concurrency_max=6), peers=(peer_spec("gw-eu", EU),))
        for _ in range(6):
            asked(one)
        heard(one, "gw-eu", EU, TenantUse(TENANT, 0, 6))
        one.wait(200 * MS)
        assert concurrency(one).share == 1
        listen(one, SECOND)
        assert concurrency(one).share == 3

    def test_one_that_says_nothing_of_limits_is_idle_for_us(self) -> None:
        one = with_peers(limited(concurrency_max=4), peer_spec("gw-old", EU))
        for _ in range(5):
            asked(one)
        listen(one, SECOND)
        assert concurrency(one).share == 4

    def test_gateways_that_have_heard_the_same_share_no_more_than_the_limit(self) -> None:
        uses = {"gw-a": 9, "gw-b": 4, "gw-c": 2}
        shares = {}
        for name, wanted in uses.items():
            others = [other for other in uses if other != name]
            one = desk(
                config=limited(concurrency_max=7),
                peers=[peer_spec(other, EU) for other in others],
                gateway_id=name,
            )
            for other in others:
                heard(one, other, EU, TenantUse(TENANT, 0, uses[other]))
            for _ in range(wanted):
                asked(one)
            listen(one, SECOND)
            shares[name] = concurrency(one).share
        assert sum(shares.values()) == 7
        assert shares["gw-a"] > shares["gw-b"] > shares["gw-c"]


class TestScope:
    def test_in_a_region_other_regions_have_no_part(self) -> None:
        near, far = peer_spec("gw-near", US), peer_spec("gw-far", EU)
        one = with_peers(limited(concurrency_max=4, limit_scope=LimitScope.REGION), near, far)
        heard(one, "gw-far", EU, TenantUse(TENANT, 4, 4))
        assert [asked(one) is None for _ in range(3)] == [True, True, False]

    def test_at_a_gateway_nobody_has_and_nobody_is_told(self) -> None:
        one = with_peers(limited(concurrency_max=4, limit_scope=LimitScope.GATEWAY))
        assert [asked(one) is None for _ in range(5)] == [True] * 4 + [False]
        assert all(not each.report.uses for each in of_kind(PublishLoad, one.wait(SECOND)))

    def test_a_region_that_may_not_have_the_tenant_is_not_told_of_it_and_has_no_part(self) -> None:
        config = limited(concurrency_max=6)
        one = with_peers(config)
        keeps = TenantPolicy(process=rule(US, EU))
        one.tell(events.PolicyApplied(policy(US, tenants={TENANT: keeps})))
        heard(one, "gw-jp", AP, TenantUse(TENANT, 6, 6))
        assert [asked(one) is None for _ in range(4)] == [True] * 3 + [False]
        report = of_kind(PublishLoad, one.wait(200 * MS))[0].report
        assert [each.tenant for each in report.told_to(EU).uses] == [TENANT]
        assert report.told_to(AP).uses == ()
        assert report.told_to(None).uses == ()
        assert report.told_to(EU).uses[0].told_in is None


class TestWhatIsTold:
    def test_of_too_many_those_that_press_most_are_told(self) -> None:
        names = [TenantName(f"t{number}") for number in range(6)]
        config = CoreConfig(
            tenants={name: TenantConfig(concurrency_max=3 + number) for number, name in enumerate(names)},
            shares=SharesConfig(told_max=2),
        )
        one = with_peers(config)
        for name in names:
            asked(one, tenant=name)
        one.wait(200 * MS)
        assert [each.tenant for each in limits_of(one.core).told] == ["t0", "t1"]
        assert limits_of(one.core).untold == 4

    def test_rounds_are_rarer_where_more_is_to_be_divided(self) -> None:
        config = CoreConfig(tenants={DEFAULT_TENANT: TenantConfig(concurrency_max=3)})
        one = with_peers(config)
        limits = limits_of(one.core)

        def ask(request_id: str, tenant: str) -> None:
            meter = limits.enter(profile(request_id, prompt="", tenant=TenantName(tenant)), one.now_ns)
            assert isinstance(meter, TenantMeter)
            meter.leave(0)

        for number in range(513):
            ask(f"r{number}", f"t{number}")
        limits.round(one.now_ns)
        version = limits.version
        meter = limits.meter_of(TenantName("t1"))
        assert meter is not None
        assert meter.concurrency is not None
        meter.concurrency.ask_at_least(3)
        one.wait(199 * MS)
        assert limits.version == version
        one.wait(MS)
        assert limits.version > version

    def test_a_changed_number_is_news_however_small(self) -> None:
        one = with_peers(replace(limited(concurrency_max=6)))
        asked(one)
        first = of_kind(PublishLoad, one.wait(150 * MS))
        asked(one)
        second = of_kind(PublishLoad, one.wait(150 * MS))
        assert (first[0].report.uses[0].running, second[0].report.uses[0].running) == (1, 2)
        assert second[0].report.is_news_after(first[0].report, 0.9)


def test_a_debt_is_not_forgotten_by_keeping_quiet_while_others_ask() -> None:
    config = limited(tokens_per_minute=100, limit_scope=LimitScope.GATEWAY)
    one = alone(replace(config, tenants={**config.tenants, OTHER: TenantConfig(concurrency_max=1)}))
    assert asked(one, request_id="long", tokens=1) is None
    one.first_token("long")
    one.finish("long")
    one.tell(events.TokensSettled(RequestId("long"), 6000))
    assert asked(one, tenant=OTHER) is None
    one.wait(300 * SECOND)
    end = asked(one, tokens=1)
    assert end is not None
    assert end.outcome is Outcome.REJECTED_TENANT_TOKEN_RATE
    assert end.retry_after_ns > 3000 * SECOND


def test_limits_that_nobody_uses_are_no_news_for_peers() -> None:
    one = with_peers(CoreConfig())
    one.wait(200 * MS)
    for config in (limited(concurrency_max=3), CoreConfig()):
        told = [each for each in one.tell(events.ConfigApplied(config)) if isinstance(each, PublishLoad)]
        assert told == []
        one.wait(101 * MS)
