from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.allowance import LimitKind
from gateway.core.features.limits.tenant_meter import TenantMeter, demand_of
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import TenantName, TenantUse

SECOND = 1_000_000_000
WINDOW = 5 * SECOND
ACME = TenantName("acme")


def meter_of(**limits: int) -> TenantMeter:
    return TenantMeter(ACME, replace(TenantConfig(), **limits), 0)


class TestDemand:
    def test_what_was_asked_for_counts_for_its_window_and_the_next(self) -> None:
        meter = meter_of(requests_per_minute=600)
        requests = meter.requests
        assert requests is not None
        requests.ask(3)
        assert meter.use(WINDOW) == TenantUse(ACME, 0, 0, 36, 0)
        meter.turn(WINDOW, WINDOW)
        assert requests.asked == 3
        assert not meter.is_idle
        meter.turn(2 * WINDOW, WINDOW)
        assert requests.asked == 0
        assert meter.is_idle

    def test_a_long_silence_is_as_many_windows(self) -> None:
        meter = meter_of(requests_per_minute=600)
        assert meter.requests is not None
        meter.requests.ask(3)
        meter.turn(7 * WINDOW + 1, WINDOW)
        assert (meter.requests.asked, meter.turned_ns) == (0, 7 * WINDOW)

    def test_what_still_runs_is_asked_for_in_every_window(self) -> None:
        meter = meter_of(concurrency_max=9)
        meter.running = 4
        meter.turn(3 * WINDOW, WINDOW)
        assert meter.use(WINDOW).demand == 4
        assert not meter.is_idle

    def test_nobody_is_told_of_more_than_the_limit(self) -> None:
        meter = meter_of(concurrency_max=9, requests_per_minute=60, tokens_per_minute=1000)
        for _, limit in meter.limits():
            limit.ask(10**9)
        assert meter.use(WINDOW) == TenantUse(ACME, 0, 9, 60, 1000)

    def test_each_limit_reads_its_own_number(self) -> None:
        use = TenantUse(ACME, 1, 2, 3, 4)
        assert [demand_of(use, kind) for kind in LimitKind] == [2, 3, 4]


class TestShares:
    def test_a_limit_that_nobody_has_a_part_in_is_whole(self) -> None:
        meter = meter_of(requests_per_minute=60)
        meter.resize(0)
        assert meter.request_bucket is not None
        assert meter.request_bucket.remaining(0) == 60

    def test_a_bucket_follows_its_share(self) -> None:
        meter = meter_of(tokens_per_minute=900)
        assert meter.tokens is not None
        meter.tokens.divide([0, 0, 0], [60, 60, 60], 1, now_ns=0, heard_ns=0)
        meter.resize(0)
        assert meter.token_bucket is not None
        assert meter.token_bucket.remaining(0) == 300
        meter.tokens.divide([900, 0, 0], [60, 60, 60], 1, now_ns=1, heard_ns=1)
        meter.resize(1)
        assert meter.token_bucket.remaining(1) == 60, "its floor is always its own"

    def test_what_others_have_taken_is_not_taken_twice(self) -> None:
        meter = meter_of(concurrency_max=6)
        assert meter.concurrency is not None
        meter.concurrency.divide([0, 3], [1, 1], 1, now_ns=0, heard_ns=0)
        meter.concurrency.cap(2)
        assert meter.concurrency.share == 2
        meter.concurrency.cap(-5)
        assert meter.concurrency.share == 1, "its floor is always its own"

    def test_new_limits_keep_what_is_used(self) -> None:
        meter = meter_of(requests_per_minute=60)
        meter.resize(0)
        assert meter.request_bucket is not None
        meter.request_bucket.take(50, 0)
        meter.follow(TenantConfig(requests_per_minute=120))
        meter.resize(0)
        assert meter.request_bucket.remaining(0) == 10

    def test_more_ends_than_beginnings_are_a_fault_of_ours(self) -> None:
        with pytest.raises(AssertionError, match="acme"):
            meter_of(concurrency_max=1).leave(0)
