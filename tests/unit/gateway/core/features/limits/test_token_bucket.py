from __future__ import annotations

from gateway.core.features.limits.token_bucket import TokenBucket

SECOND = 1_000_000_000


class TestWhatItGives:
    def test_a_minutes_worth_at_once_and_then_as_it_refills(self) -> None:
        bucket = TokenBucket(60, 0)
        assert bucket.wait_ns(60, 0) == 0
        bucket.take(60, 0)
        assert bucket.wait_ns(1, 0) == SECOND
        assert bucket.wait_ns(1, SECOND - 1) == 1
        assert bucket.wait_ns(1, SECOND) == 0
        assert (bucket.remaining(30 * SECOND), bucket.reset_ns(30 * SECOND)) == (30, 30 * SECOND)

    def test_more_than_it_holds_comes_from_a_full_one_and_leaves_a_debt(self) -> None:
        bucket = TokenBucket(60, 0)
        assert bucket.wait_ns(600, 0) == 0
        bucket.take(600, 0)
        assert bucket.wait_ns(1, 0) == 541 * SECOND
        assert bucket.remaining(0) == 0

    def test_an_absurd_debt_is_paid_off_within_an_hour(self) -> None:
        bucket = TokenBucket(60, 0)
        bucket.take(10**15, 0)
        assert bucket.wait_ns(1, 0) == 3601 * SECOND

    def test_what_is_given_back_never_overfills_it(self) -> None:
        bucket = TokenBucket(60, 0)
        bucket.take(10, 0)
        bucket.give_back(600, 0)
        assert bucket.remaining(0) == 60


class TestWhenItChanges:
    def test_growing_makes_nothing_out_of_nothing(self) -> None:
        bucket = TokenBucket(20, 0)
        bucket.take(15, 0)
        bucket.resize(60, 0)
        assert bucket.remaining(0) == 5
        assert bucket.remaining(SECOND) == 6

    def test_shrinking_keeps_what_fits(self) -> None:
        bucket = TokenBucket(60, 0)
        bucket.resize(20, 0)
        bucket.resize(60, 0)
        assert bucket.remaining(0) == 20

    def test_one_of_nothing_gives_nothing(self) -> None:
        bucket = TokenBucket(0, 0)
        assert bucket.wait_ns(1, SECOND) == -1
        assert bucket.reset_ns(SECOND) == 0

    def test_two_that_pass_an_allowance_to_and_fro_give_no_more_than_one(self) -> None:
        buckets = [TokenBucket(60, 0), TokenBucket(0, 0)]
        given = 0
        for second in range(600):
            at = second % 2
            buckets[at].resize(60, second * SECOND)
            buckets[1 - at].resize(0, second * SECOND)
            for bucket in buckets:
                if bucket.wait_ns(1, second * SECOND) == 0:
                    bucket.take(1, second * SECOND)
                    given += 1
        assert given <= 60 + 600
