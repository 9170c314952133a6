"""Usage that is charged to tenants for fair sharing, and usage that is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.features.sharing.config import SharingConfig
from gateway.core.features.sharing.fair_shares import OTHERS, Charge, FairShares
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import Hints, RequestProfile, TenantName
from tests.support.core import profile

ACME, ZETA, NEW = (TenantName(name) for name in ("acme", "zeta", "new"))


def asked(tenant: TenantName, prompt_bytes: int = 400, **more: object) -> RequestProfile:
    return replace(profile("r", tenant=tenant), prompt_bytes=prompt_bytes, **more)


def run(shares: FairShares, tenant: TenantName, prompt_bytes: int = 400, written: int = 10) -> Charge:
    """Run a request that waits for no other."""
    charge = shares.opened(tenant)
    shares.joined(charge.account)
    shares.left(charge.account)
    shares.started(charge, asked(tenant, prompt_bytes), 0)
    shares.ended(charge, None, written)
    shares.closed(charge)
    return charge


def test_a_tokens_prompt_counts_at_the_start_and_what_is_written_counts_double() -> None:
    shares = FairShares()
    charge = shares.opened(ACME)
    shares.started(charge, asked(ACME), 0)
    assert charge.account.counter == 100, "four bytes a token, as far as anybody knows"
    shares.ended(charge, prompt_tokens=90, output_tokens=7)
    shares.closed(charge)
    assert charge.account.counter == 90 + 2 * 7
    assert (charge.account.input_tokens, charge.account.output_tokens, charge.account.open) == (90, 7, 0)


def test_the_length_of_answers_before_is_reckoned_with_from_the_start() -> None:
    shares = FairShares()
    first = run(shares, ACME, written=50)
    before = first.account.counter
    charge = shares.opened(ACME)
    shares.started(charge, asked(ACME), 0)
    assert charge.account.counter - before == 100 + 2 * 50
    short = shares.opened(ACME)
    shares.started(short, asked(ACME, output_tokens_max=3), 0)
    assert short.output_tokens == 3, "it cannot be longer than its client lets it"


@pytest.mark.parametrize("hinted", [1, 2**31])
def test_a_hinted_length_changes_no_tenant_s_charge(hinted: int) -> None:
    """A tenant that hints, starts and cancels leaves another that comes meanwhile where it would be without hints."""

    def counters(hints: Hints) -> list[float]:
        shares = FairShares()
        mean = run(shares, ACME, written=50).account
        cancelled = shares.opened(ACME)
        shares.joined(cancelled.account)
        shares.left(cancelled.account)
        shares.started(cancelled, asked(ACME, hints=hints), 0)
        at_start = mean.counter
        later = shares.opened(ZETA)
        shares.closed(cancelled)
        return [at_start, later.account.counter, mean.counter]

    assert counters(Hints(output_tokens=hinted)) == counters(Hints())


def test_progress_beyond_what_was_reckoned_with_counts_at_once() -> None:
    shares = FairShares()
    charge = shares.opened(ACME)
    shares.started(charge, asked(ACME), 25)
    shares.progressed(charge, 40)
    assert charge.account.counter == 25 + 2 * 40
    shares.progressed(charge, 30)
    assert charge.account.counter == 25 + 2 * 40
    shares.ended(charge, None, 45)
    shares.closed(charge)
    assert charge.account.counter == 25 + 2 * 45


def test_however_often_it_is_tried_it_is_charged_once_and_what_nobody_ran_is_given_back() -> None:
    shares = FairShares()
    charge = shares.opened(ACME)
    for _ in range(3):
        shares.started(charge, asked(ACME), 0)
    assert charge.account.counter == 100
    shares.closed(charge)
    assert charge.account.counter == 0, "refused wherever it went"


def test_what_looks_at_a_stored_response_costs_nothing() -> None:
    shares = FairShares()
    charge = shares.opened(ACME)
    shares.started(charge, asked(ACME, is_control=True), 0)
    shares.ended(charge, 500, 500)
    shares.closed(charge)
    assert charge.account.counter == 0


def test_weights_divide_what_is_charged_and_change_from_then_on() -> None:
    shares = FairShares()
    shares.configure(SharingConfig(), {ACME: TenantConfig(weight=4), TenantName("default"): TenantConfig(weight=0.5)})
    assert run(shares, ACME, written=0).account.counter == 25
    assert run(shares, ZETA, written=0).account.counter == 25 + 200
    shares.configure(SharingConfig(), {})
    assert run(shares, ACME, written=0).account.counter == 25 + 200 + 100, "lifted, then charged"


class TestIdling:
    """Tenants do not save up credit while idle."""

    def test_who_comes_while_others_wait_begins_where_the_least_of_them_is(self) -> None:
        shares = FairShares()
        run(shares, ACME, 4000)
        run(shares, ZETA, 40_000)
        waiting = [shares.opened(ACME), shares.opened(ZETA)]
        for each in waiting:
            shares.joined(each.account)
        least = min(each.account.counter for each in waiting)
        assert least > 0
        assert shares.opened(NEW).account.counter == least

    def test_who_comes_when_nobody_waits_begins_where_the_last_one_left(self) -> None:
        shares = FairShares()
        used = run(shares, ACME, 4000).account.counter
        assert shares.opened(NEW).account.counter == used

    def test_a_counter_is_never_lowered(self) -> None:
        shares = FairShares()
        most = run(shares, ACME, 40_000).account.counter
        shares._last = None
        behind = shares.opened(ZETA)
        shares.joined(behind.account)
        assert shares.opened(ACME).account.counter == most

    def test_who_waits_already_is_not_lifted_by_coming_again(self) -> None:
        shares = FairShares()
        behind = shares.opened(ZETA)
        shares.joined(behind.account)
        ahead = shares.opened(ACME)
        shares.joined(ahead.account)
        shares.started(ahead, asked(ACME), 0)
        assert shares.opened(ZETA).account.counter == 0


class TestBounds:
    def test_those_without_anything_here_are_forgotten_first(self) -> None:
        shares = FairShares()
        shares.configure(SharingConfig(tenants_max=2), {})
        kept = shares.opened(ACME)
        run(shares, ZETA)
        shares.opened(NEW)
        assert set(shares.figures()) == {ACME, NEW}
        assert shares.forgotten == 1
        assert kept.account in shares

    def test_with_more_than_are_told_apart_newcomers_share_a_counter(self) -> None:
        shares = FairShares()
        shares.configure(SharingConfig(tenants_max=2), {})
        charges = [shares.opened(TenantName(f"t{number}")) for number in range(9)]
        assert [each.account.name for each in charges] == ["t0", "t1"] + [OTHERS] * 7
        assert shares.size <= shares.size_max == 3

    def test_a_smaller_bound_holds_at_once(self) -> None:
        shares = FairShares()
        for number in range(9):
            run(shares, TenantName(f"t{number}"))
        shares.configure(SharingConfig(tenants_max=4), {})
        assert shares.size == 4


def test_priority_rises_while_a_request_waits_up_to_the_highest_there_is() -> None:
    shares = FairShares()
    shares.configure(SharingConfig(aging_ns=10), {ACME: TenantConfig(priority=2)})
    low, high = shares.opened(ZETA).account, shares.opened(ACME).account
    assert [shares.priority_of(low, 0, now_ns) for now_ns in (0, 9, 10, 19, 20, 1000)] == [0, 0, 1, 1, 2, 2]
    assert shares.priority_of(high, 0, 1000) == 2


def test_over_the_limit_it_stays_a_limit_however_often_the_others_come_and_go() -> None:
    shares = FairShares()
    shares.configure(SharingConfig(tenants_max=2), {})
    for number in range(20):
        charges = [shares.opened(TenantName(f"t{number}-{each}")) for each in range(4)]
        assert {each.account.name for each in charges[2:]} == {OTHERS}
        assert shares.size <= shares.size_max == 3
        for each in charges:
            shares.closed(each)


class TestWhoLeavesRoom:
    def running(self, shares: FairShares, *tenants: TenantName) -> list[Charge]:
        return [shares.opened(each) for each in tenants]

    def test_only_who_runs_more_than_so_many_times_its_share_beside_others_and_only_where_it_is_asked(self) -> None:
        shares = FairShares()
        acme, *_, zeta = self.running(shares, ACME, ACME, ACME, ZETA)
        assert not shares.leaves_room(acme.account), "nobody asked"
        shares.configure(SharingConfig(yields_above=1.5), {})
        assert not shares.leaves_room(acme.account), "three of four, and half is its share"
        self.running(shares, ACME)
        assert shares.leaves_room(acme.account)
        assert not shares.leaves_room(zeta.account)
        shares.configure(SharingConfig(yields_above=1.5), {ACME: TenantConfig(weight=3)})
        assert not shares.leaves_room(acme.account), "three quarters are its share"

    def test_one_that_runs_is_no_flood_however_many_share(self) -> None:
        shares = FairShares()
        shares.configure(SharingConfig(yields_above=1.0), {})
        for number in range(100):
            run(shares, TenantName(f"t{number}"))
        (acme,) = self.running(shares, ACME)
        assert not shares.leaves_room(acme.account)
        self.running(shares, ACME)
        assert shares.leaves_room(acme.account)

    def test_not_once_nobody_else_has_been_here_for_a_minute(self) -> None:
        shares = FairShares()
        shares.configure(SharingConfig(yields_above=1.0), {})
        run(shares, ZETA)
        acme, _ = self.running(shares, ACME, ACME)
        shares.begin(60_000_000_000)
        assert shares.leaves_room(acme.account)
        shares.begin(60_000_000_001)
        assert not shares.leaves_room(acme.account), "though nobody came or left"

    def test_who_runs_something_for_long_is_still_here(self) -> None:
        shares = FairShares()
        shares.configure(SharingConfig(yields_above=1.0), {})
        acme, *_ = self.running(shares, ACME, ACME, ZETA)
        shares.begin(61_000_000_000)
        assert shares.leaves_room(acme.account)

    def test_once_all_are_gone_their_weights_leave_no_remainder(self) -> None:
        shares, weights = FairShares(), {ACME: 0.1, ZETA: 0.2, NEW: 0.3}
        shares.configure(SharingConfig(), {name: TenantConfig(weight=weight) for name, weight in weights.items()})
        for name in weights:
            run(shares, name)
        assert shares._lately_weight == pytest.approx(0.6)
        shares.begin(61_000_000_000)
        assert shares._lately_weight == 0.0

    def test_who_is_forgotten_counts_no_more(self) -> None:
        shares = FairShares()
        shares.configure(SharingConfig(yields_above=1.0, tenants_max=2), {})
        acme, _ = self.running(shares, ACME, ACME)
        run(shares, ZETA)
        run(shares, NEW)
        assert shares.forgotten == 1
        assert shares.leaves_room(acme.account)
        shares.configure(SharingConfig(yields_above=1.0, tenants_max=1), {})
        assert not shares.leaves_room(acme.account)


def test_shares_are_contested_once_requests_of_two_tenants_wait() -> None:
    shares = FairShares()
    contested = []
    for tenant in (ACME, ACME, ZETA):
        shares.joined(shares.opened(tenant).account)
        contested.append(shares.are_contested)
    assert contested == [False, False, True]
