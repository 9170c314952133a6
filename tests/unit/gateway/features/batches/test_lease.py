from __future__ import annotations

import pytest

from gateway.features.batches.lease import BatchHolding, BatchLeases, HoldingMark

LEASE = 100
MINE, OTHERS = BatchHolding("a", 3), HoldingMark(5, 9)


@pytest.fixture
def leases() -> BatchLeases:
    return BatchLeases(LEASE)


def see(leases: BatchLeases, mark: HoldingMark, *times: int) -> None:
    for time in times:
        leases.saw({"b": mark}, asked_ns=time, answered_ns=time)


def test_a_holding_lapses_after_a_lease_without_a_renewal(leases: BatchLeases) -> None:
    see(leases, OTHERS, 0, 40, 80, 99)
    assert (leases.is_anothers("b"), leases.mark_to_take("b")) == (True, None)
    see(leases, OTHERS, 100)
    assert (leases.is_anothers("b"), leases.mark_to_take("b")) == (False, OTHERS)


@pytest.mark.parametrize("renewed", [HoldingMark(5, 10), HoldingMark(6, 0)])
def test_a_renewal_begins_a_new_lease(leases: BatchLeases, renewed: HoldingMark) -> None:
    see(leases, OTHERS, 0, 40, 80)
    see(leases, renewed, 100, 140, 180, 199)
    assert leases.is_anothers("b")
    see(leases, renewed, 200)
    assert leases.mark_to_take("b") == renewed


def test_a_holding_does_not_lapse_while_the_store_does_not_answer(leases: BatchLeases) -> None:
    see(leases, OTHERS, 0, 40, 500)
    assert leases.is_anothers("b"), "its holder could not renew either"
    see(leases, OTHERS, 540, 580, 600)
    assert leases.mark_to_take("b") == OTHERS


def test_a_slow_answer_does_not_make_a_lease_shorter(leases: BatchLeases) -> None:
    leases.saw({"b": OTHERS}, asked_ns=0, answered_ns=40)
    for time in (60, 100, 139):
        see(leases, OTHERS, time)
    assert leases.is_anothers("b"), "the holder may have renewed until the first answer"
    see(leases, OTHERS, 140)
    assert not leases.is_anothers("b")


def test_own_holdings_are_none_of_others(leases: BatchLeases) -> None:
    leases.took(MINE)
    for time in (0, 40, 80, 120):
        leases.saw({"a": HoldingMark(3, 0)}, asked_ns=time, answered_ns=time)
    assert not leases.is_anothers("a")
    assert leases.mark_to_take("a") is None


def test_a_holding_that_is_another_gateways_by_now_is_seen_as_such(leases: BatchLeases) -> None:
    leases.took(MINE)
    leases.saw({"a": HoldingMark(4, 0)}, asked_ns=0, answered_ns=0)
    assert leases.is_anothers("a")


def test_a_renewal_tells_what_is_lost(leases: BatchLeases) -> None:
    leases.took(MINE)
    leases.took(kept := BatchHolding("c", 1))
    assert leases.renewed([MINE, kept], [kept]) == [MINE]
    assert leases.held == [kept]


def test_a_renewal_says_nothing_of_what_was_given_up_or_taken_anew_meanwhile(leases: BatchLeases) -> None:
    leases.took(MINE)
    leases.gave_up("a")
    assert leases.renewed([MINE], []) == []
    leases.took(newer := BatchHolding("a", 7))
    assert leases.renewed([MINE], []) == []
    assert leases.held == [newer]


def test_terms_rise(leases: BatchLeases) -> None:
    leases.took(MINE)
    with pytest.raises(AssertionError):
        leases.took(BatchHolding("a", 3))
