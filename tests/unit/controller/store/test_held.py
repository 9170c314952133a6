from __future__ import annotations

from controller.store.held import Mark, Watch, lease_end_ns

LEASE = 6_000
MARK = Mark(3, "key", 7)


def seen(watch: Watch, mark: Mark, asked_ns: int, took_ns: int = 0) -> bool:
    return watch.has_ended(mark, LEASE, asked_ns=asked_ns, answered_ns=asked_ns + took_ns)


def test_what_is_seen_first_may_have_been_renewed_just_before() -> None:
    watch = Watch()
    assert not seen(watch, MARK, 1_000_000)
    assert not seen(watch, MARK, 1_000_000 + LEASE - 1)
    assert seen(watch, MARK, 1_000_000 + LEASE)


def test_time_counts_from_the_first_answer_to_the_last_question() -> None:
    watch = Watch()
    assert not seen(watch, MARK, 0, took_ns=500)
    assert not seen(watch, MARK, LEASE, took_ns=10_000)
    assert seen(watch, MARK, LEASE + 500)


def test_each_renewal_and_each_other_holder_begins_it_anew() -> None:
    watch = Watch()
    for number, mark in enumerate((MARK, Mark(3, "key", 8), Mark(3, "other", 8), Mark(4, "other", 8))):
        assert not seen(watch, mark, number * LEASE)
        assert not seen(watch, mark, (number + 1) * LEASE - 1)


def test_while_the_store_cannot_be_asked_nobody_else_may_be_able_to_renew_it() -> None:
    watch = Watch()
    assert not seen(watch, MARK, 0)
    watch.forget()
    assert not seen(watch, MARK, 2 * LEASE)
    assert seen(watch, MARK, 3 * LEASE)


def test_whoever_has_it_gives_it_up_before_anybody_can_take_it() -> None:
    asked, arrived, seen_by_other = 100, 200, 250
    assert lease_end_ns(asked, LEASE, margin_ns=1_000) < arrived + LEASE < seen_by_other + LEASE
