from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.allowance import LimitAllowance, LimitKind
from gateway.core.vocabulary import TenantName
from gateway.door.limits import Bucket, Exceeded, KeyMeter, Limit, Meters, format_reset, rate_headers
from gateway.request.callers import ClientKey, KeyId, KeyLimits

MS = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
NOW = 5 * MINUTE


def meter(**limits: int) -> KeyMeter:
    made = KeyMeter()
    made.follow(KeyLimits(**limits))
    return made


def key(name: str, **limits: int) -> ClientKey:
    return ClientKey(KeyId(name), TenantName("acme"), KeyLimits(**limits))


class TestBucket:
    def test_a_full_one_gives_a_minutes_allowance_at_once_and_then_one_at_a_time(self) -> None:
        bucket = Bucket(60)
        for _ in range(60):
            assert bucket.wait_ns(1, NOW) == 0
            bucket.take(1, NOW)
        assert bucket.remaining(NOW) == 0
        assert bucket.wait_ns(1, NOW) == SECOND
        assert bucket.wait_ns(1, NOW + SECOND) == 0

    def test_the_wait_it_tells_is_the_truth(self) -> None:
        bucket = Bucket(7)
        for _ in range(7):
            bucket.take(1, NOW)
        wait_ns = bucket.wait_ns(3, NOW)
        assert bucket.wait_ns(3, NOW + wait_ns - 1) == 1
        assert bucket.wait_ns(3, NOW + wait_ns) == 0

    def test_more_than_it_holds_is_taken_from_a_full_one_as_a_debt(self) -> None:
        bucket = Bucket(100)
        assert bucket.wait_ns(250, NOW) == 0
        bucket.take(250, NOW)
        assert bucket.wait_ns(1, NOW) == 90_600 * MS
        assert bucket.remaining(NOW) == 0
        assert bucket.reset_ns(NOW) == 150 * SECOND

    @pytest.mark.parametrize("used", [10_000_000, 10**30])
    def test_no_debt_lasts_longer_than_an_hour(self, used: int) -> None:
        """Holds for any usage that an engine reports."""
        bucket = Bucket(1_000)
        for _ in range(3):
            bucket.take(used, NOW)
        assert bucket.wait_ns(1_000, NOW) == 61 * MINUTE
        assert bucket.wait_ns(1, NOW + 60 * MINUTE + MINUTE // 1_000) == 0

    def test_what_is_given_back_can_be_taken_again_and_never_more(self) -> None:
        bucket = Bucket(100)
        bucket.take(80, NOW)
        bucket.give_back(50)
        assert bucket.remaining(NOW) == 70
        bucket.give_back(1000)
        assert bucket.remaining(NOW) == 100
        bucket.take(100, NOW)
        assert bucket.wait_ns(1, NOW) > 0

    @given(
        per_minute=st.integers(1, 10**6),
        asks=st.lists(st.tuples(st.integers(0, MINUTE), st.integers(1, 1000)), max_size=40),
    )
    def test_no_window_gives_more_than_burst_and_refill(self, per_minute: int, asks: list[tuple[int, int]]) -> None:
        bucket, now_ns, taken = Bucket(per_minute), NOW, 0
        for pause_ns, amount in asks:
            now_ns += pause_ns
            if amount <= per_minute and bucket.wait_ns(amount, now_ns) == 0:
                bucket.take(amount, now_ns)
                taken += amount
        assert taken <= per_minute * (1 + (now_ns - NOW) / MINUTE) + 1


class TestKeyMeter:
    def test_a_place_is_taken_until_it_is_left(self) -> None:
        one = meter(concurrency_max=1)
        assert one.enter(NOW) is None
        assert one.enter(NOW) == Exceeded(Limit.CONCURRENCY, 0)
        one.leave()
        assert one.enter(NOW) is None

    def test_a_refused_request_uses_nothing_up(self) -> None:
        one = meter(concurrency_max=1, requests_per_minute=2)
        one.enter(NOW)
        one.enter(NOW)
        assert one.requests is not None
        assert (one.running, one.requests.remaining(NOW)) == (1, 1)

    def test_requests_per_minute(self) -> None:
        one = meter(requests_per_minute=2)
        assert [one.enter(NOW) for _ in range(2)] == [None, None]
        assert one.enter(NOW) == Exceeded(Limit.REQUESTS, 30 * SECOND)
        assert one.enter(NOW + 30 * SECOND) is None

    def test_tokens_are_set_aside_and_settled(self) -> None:
        one = meter(tokens_per_minute=1000)
        assert one.take_tokens(800, NOW) is None
        assert one.take_tokens(300, NOW) == Exceeded(Limit.TOKENS, SECOND), "as soon as the other one has ended"
        one.settle_tokens(800, 100, NOW)
        assert one.take_tokens(300, NOW) is None
        one.settle_tokens(300, 1900, NOW)
        assert one.enter(NOW) == Exceeded(Limit.TOKENS, 60 * SECOND + 60 * MS)

    def test_a_client_is_told_the_earliest_time_at_which_its_request_could_pass(self) -> None:
        """Reserved tokens of a running request may be given back; used tokens return with time alone."""
        one = meter(tokens_per_minute=1000)
        assert one.take_tokens(600, NOW) is None
        assert one.take_tokens(300, NOW) is None
        assert one.take_tokens(500, NOW) == Exceeded(Limit.TOKENS, SECOND)
        one.settle_tokens(600, 600, NOW)
        assert one.take_tokens(500, NOW) == Exceeded(Limit.TOKENS, 6 * SECOND), "if the other uses nothing"
        one.settle_tokens(300, 300, NOW)
        assert one.take_tokens(500, NOW) == Exceeded(Limit.TOKENS, 24 * SECOND)
        assert one.take_tokens(100, NOW) is None
        one.settle_tokens(100, 100 + 10, NOW)
        assert one.take_tokens(1, NOW) == Exceeded(Limit.TOKENS, 660 * MS), "no sooner than it is"

    def test_a_key_whose_tokens_are_all_set_aside_is_not_told_to_wait_for_its_minute(self) -> None:
        one = meter(tokens_per_minute=1000)
        assert one.take_tokens(1000, NOW) is None
        assert one.enter(NOW) == Exceeded(Limit.TOKENS, 60 * MS), "one token will do to send a body"
        one.follow(KeyLimits(tokens_per_minute=10))
        one.settle_tokens(1000, 1010, NOW)
        assert one.set_aside == 0

    def test_no_limit_is_no_limit(self) -> None:
        one = meter()
        assert [one.enter(NOW) for _ in range(100)] == [None] * 100
        assert one.take_tokens(10**9, NOW) is None
        one.settle_tokens(10**9, 0, NOW)
        assert rate_headers(one, NOW) == {}

    def test_changed_limits_hold_at_once_and_what_was_used_stays_used(self) -> None:
        one = meter(requests_per_minute=2)
        one.enter(NOW)
        one.enter(NOW)
        one.follow(KeyLimits(requests_per_minute=4))
        assert one.enter(NOW) == Exceeded(Limit.REQUESTS, 15 * SECOND)
        one.follow(KeyLimits())
        assert one.enter(NOW) is None


class TestMeters:
    def test_a_key_keeps_its_meter_and_its_meter_follows_it(self) -> None:
        meters = Meters()
        first = meters.of(key("a", concurrency_max=1))
        assert meters.of(key("a", concurrency_max=2)) is first
        assert first.limits.concurrency_max == 2
        assert meters.of(key("b")) is not first

    def test_over_its_bound_the_longest_unused_is_forgotten_but_none_that_runs(self) -> None:
        meters = Meters(meters_max=2)
        busy = meters.of(key("busy"))
        busy.enter(NOW)
        idle = meters.of(key("idle"))
        meters.of(key("new"))
        assert len(meters) == 2
        assert meters.of(key("busy")) is busy
        assert meters.of(key("idle")) is not idle


def test_headers_say_limit_rest_and_reset() -> None:
    one = meter(requests_per_minute=120, tokens_per_minute=60_000)
    one.enter(NOW)
    one.take_tokens(30_000, NOW)
    assert rate_headers(one, NOW) == {
        "x-ratelimit-limit-requests": "120",
        "x-ratelimit-remaining-requests": "119",
        "x-ratelimit-reset-requests": "500ms",
        "x-ratelimit-limit-tokens": "60000",
        "x-ratelimit-remaining-tokens": "30000",
        "x-ratelimit-reset-tokens": "30s",
    }


def test_headers_say_whichever_of_key_and_tenant_has_less_left() -> None:
    one = meter(requests_per_minute=120)
    of_tenant = [
        LimitAllowance(LimitKind.REQUESTS, 600, 100, SECOND),
        LimitAllowance(LimitKind.TOKENS, 9000, 10, 3 * SECOND),
    ]
    said = rate_headers(one, NOW, of_tenant)
    assert (said["x-ratelimit-limit-requests"], said["x-ratelimit-remaining-requests"]) == ("600", "100")
    assert (said["x-ratelimit-limit-tokens"], said["x-ratelimit-reset-tokens"]) == ("9000", "3s")
    assert (
        rate_headers(one, NOW, [LimitAllowance(LimitKind.REQUESTS, 600, 200, 0)])["x-ratelimit-limit-requests"] == "120"
    )
    assert rate_headers(None, NOW, of_tenant[:1])["x-ratelimit-reset-requests"] == "1s"


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (12 * MS, "12ms"),
        (SECOND, "1s"),
        (1500 * MS, "1.5s"),
        (10 * SECOND, "10s"),
        (6 * MINUTE, "6m0s"),
        (MINUTE + 250 * MS, "1m0.25s"),
        (MINUTE - 1, "1m0s"),
    ],
)
def test_a_reset_is_written_as_openai_does(duration_ns: int, text: str) -> None:
    assert format_reset(duration_ns) == text
