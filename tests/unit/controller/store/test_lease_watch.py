from __future__ import annotations

from controller.store.lease_watch import LeaseMark, LeaseWatch, lease_end_ns

LEASE = 6_000
LOOK = 500
MARK = LeaseMark(3, "key", 7)


class Looks:
    """Looks at a lease, one after the other, at intervals that a test sets."""

    def __init__(self) -> None:
        self.watch = LeaseWatch()
        self.now = 1_000_000

    def look(self, mark: LeaseMark = MARK, *, after: int = LOOK, took: int = 0) -> bool:
        asked = self.now + after
        self.now = asked + took
        return self.watch.has_ended(mark, LEASE, asked_ns=asked, answered_ns=self.now)

    def until(self, at: int, mark: LeaseMark = MARK) -> None:
        while self.now + LOOK <= at:
            assert not self.look(mark)
        if self.now < at:
            assert not self.look(mark, after=at - self.now)


def test_what_is_seen_first_may_have_been_renewed_just_before() -> None:
    looks = Looks()
    assert not looks.look(after=1_000_000)
    looks.until(looks.now + LEASE - 1)
    assert looks.look(after=1)


def test_time_counts_from_the_first_answer_to_the_last_question() -> None:
    looks = Looks()
    assert not looks.look(took=400)
    looks.until(looks.now + LEASE - 100)
    assert not looks.look(after=99, took=300)
    assert looks.look(after=1)


def test_each_renewal_and_each_other_holder_begins_it_anew() -> None:
    looks = Looks()
    for mark in (MARK, LeaseMark(3, "key", 8), LeaseMark(3, "other", 8), LeaseMark(4, "other", 8)):
        assert not looks.look(mark)
        looks.until(looks.now + LEASE - 1, mark)


def test_a_look_or_two_that_fail_are_no_reason_to_wait_longer() -> None:
    looks = Looks()
    assert not looks.look()
    for _ in range(3):
        assert not looks.look(after=LEASE // 4)
    assert looks.look(after=LEASE // 4)


def test_while_the_store_does_not_answer_nobody_else_may_be_able_to_renew_it() -> None:
    looks = Looks()
    assert not looks.look()
    assert not looks.look(after=10 * LEASE)
    looks.until(looks.now + LEASE - 1)
    assert looks.look(after=1)


def test_whoever_has_it_gives_it_up_before_anybody_can_take_it() -> None:
    asked, arrived, seen_by_other = 100, 200, 250
    assert lease_end_ns(asked, LEASE, margin_ns=1_000) < arrived + LEASE < seen_by_other + LEASE
