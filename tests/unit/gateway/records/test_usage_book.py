from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.core.vocabulary import GatewayId, TenantName
from gateway.records.peer_usage import BudgetUse, OthersUsage
from gateway.records.usage_book import OTHERS, Spent, UsageAmounts, UsageBook, UsageKey
from gateway.request.callers import NO_BUDGET, Budget, KeyId
from tests.hostile.clock_jumps import JUMP_CASES, JumpCase

KEY, ACME = KeyId("team-a"), TenantName("acme")
DAY = Budget(tokens_per_day=100)
MONTH = Budget(tokens_per_month=100)
HOUR_NS = 3600 * 10**9
SECOND_NS = 1_000_000_000


def at(moment: str) -> int:
    return int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * 10**9


NOON = at("2026-11-22T12:00")
MONTH_LEFT_NS = at("2026-12-01T00:00") - NOON


def use(book: UsageBook, tokens: int, wall_ns: int = NOON, key: KeyId = KEY, tenant: TenantName = ACME) -> None:
    book.set_aside(key, tenant, 10)
    book.settle(key, tenant, 10, UsageAmounts(1, tokens - 1, 0, 1), wall_ns)


def spent(book: UsageBook, key: Budget, tenant: Budget = NO_BUDGET, wall_ns: int = NOON) -> Spent | None:
    return book.spent(KEY, ACME, (key, tenant), wall_ns)


class TestBudgets:
    def test_a_day_s_is_spent_until_midnight(self) -> None:
        book = UsageBook()
        use(book, 99)
        assert spent(book, DAY) is None
        use(book, 1)
        assert spent(book, DAY) == Spent("key", "day", 100, 12 * HOUR_NS)
        assert spent(book, DAY, wall_ns=at("2026-11-23T00:00")) is None

    @pytest.mark.parametrize(("now", "left_days"), [("2026-11-22", 9), ("2026-12-31", 1), ("2028-02-28", 2)])
    def test_a_month_s_until_the_month_is_over(self, now: str, left_days: int) -> None:
        book, midnight = UsageBook(), at(f"{now}T00:00")
        use(book, 100, midnight)
        assert spent(book, MONTH, wall_ns=midnight) == Spent("key", "month", 100, left_days * 24 * HOUR_NS)
        assert spent(book, MONTH, wall_ns=midnight + left_days * 24 * HOUR_NS) is None

    @pytest.mark.parametrize("case", JUMP_CASES, ids=lambda case: case.name)
    def test_a_clock_that_jumps_fills_none_again(self, case: JumpCase) -> None:
        book = UsageBook()
        for moment, tokens in case.used:
            book.settle(KEY, ACME, 0, UsageAmounts(1, tokens, 0, 0), at(moment))
        assert (spent(book, DAY, wall_ns=at(case.asked)) is not None) is case.day
        assert (spent(book, MONTH, wall_ns=at(case.asked)) is not None) is case.month

    def test_what_runs_counts_until_it_is_over_and_then_as_what_it_came_to(self) -> None:
        book = UsageBook()
        book.set_aside(KEY, ACME, 100)
        assert spent(book, DAY) is not None
        book.settle(KEY, ACME, 100, UsageAmounts(1, 40, 0, 0), NOON)
        assert spent(book, DAY) is None

    def test_what_is_only_set_aside_may_be_back_in_a_second(self) -> None:
        book = UsageBook()
        book.set_aside(KEY, ACME, 100)
        assert spent(book, DAY) == Spent("key", "day", 100, SECOND_NS)
        assert spent(book, MONTH) == Spent("key", "month", 100, SECOND_NS)
        book.settle(KEY, ACME, 100, UsageAmounts(1, 100, 0, 0), NOON)
        assert spent(book, DAY) == Spent("key", "day", 100, 12 * HOUR_NS)

    def test_all_keys_of_a_tenant_use_up_one_budget(self) -> None:
        book = UsageBook()
        use(book, 60)
        use(book, 60, key=KeyId("team-b"))
        assert spent(book, DAY, NO_BUDGET) is None
        assert spent(book, NO_BUDGET, MONTH) == Spent("tenant", "month", 100, at("2026-12-01T00:00") - NOON)

    def test_what_was_written_down_counts_again(self) -> None:
        rows = {
            UsageKey("2026-11-22", KEY, ACME): UsageAmounts(1, 30, 0, 0),
            UsageKey("2026-11-01", KEY, ACME): UsageAmounts(1, 70, 0, 0),
            UsageKey("2026-10-31", KEY, ACME): UsageAmounts(1, 500, 0, 0),
        }
        book = UsageBook()
        book.remember(rows, NOON)
        assert spent(book, MONTH) is not None
        assert spent(book, DAY) is None
        use(book, 70)
        assert spent(book, DAY) is not None


class TestRows:
    def test_a_row_is_of_one_key_tenant_and_day(self) -> None:
        book = UsageBook()
        use(book, 10)
        use(book, 20)
        use(book, 5, at("2026-11-23T01:00"))
        assert book.take_rows() == {
            UsageKey("2026-11-22", KEY, ACME): UsageAmounts(2, 28, 0, 2),
            UsageKey("2026-11-23", KEY, ACME): UsageAmounts(1, 4, 0, 1),
        }
        assert book.take_rows() == {}

    def test_what_could_not_be_written_comes_again(self) -> None:
        book = UsageBook()
        use(book, 10)
        rows = book.take_rows()
        use(book, 10)
        book.give_back(rows)
        assert book.take_rows() == {UsageKey("2026-11-22", KEY, ACME): UsageAmounts(2, 18, 0, 2)}


class TestBounds:
    def test_many_names_end_in_one_row(self) -> None:
        book = UsageBook(unwritten_max=3)
        for number in range(10):
            use(book, 2, tenant=TenantName(f"t{number}"))
        rows = book.take_rows()
        assert len(rows) == 4
        assert rows[UsageKey("2026-11-22", KeyId(""), OTHERS)].requests == 7

    def test_who_has_a_budget_or_something_running_is_not_forgotten(self) -> None:
        book = UsageBook(accounts_max=4)
        use(book, 100)
        assert spent(book, DAY) is not None
        book.set_aside(KeyId("runs"), TenantName("runs"), 5)
        for number in range(50):
            use(book, 2, key=KeyId(f"k{number}"), tenant=TenantName(f"t{number}"))
        assert len(book) <= 5
        assert spent(book, DAY) is not None


class TestWithOthers:
    """Budgets that several gateways use up together."""

    PEER = GatewayId("eu-1")
    NAME = ("key", "team-a")

    def heard(self, book: UsageBook, tokens: int, *, day: str = "2026-11-22", set_aside: int = 0) -> None:
        book.hear(self.PEER, BudgetUse(self.NAME, day, tokens, tokens, set_aside), NOON)

    def test_what_another_gateway_used_and_has_running_counts(self) -> None:
        book = UsageBook()
        use(book, 40)
        self.heard(book, 59)
        assert spent(book, DAY) is None
        self.heard(book, 60)
        assert spent(book, DAY) is not None
        assert spent(book, MONTH) is not None
        self.heard(book, 50, set_aside=20)
        assert spent(book, Budget(tokens_per_day=101)) is not None
        book.fell_silent(self.PEER, NOON)
        assert spent(book, Budget(tokens_per_day=101)) is None

    def test_the_next_day_begins_with_nothing(self) -> None:
        book = UsageBook()
        self.heard(book, 100)
        assert spent(book, DAY) is not None
        assert spent(book, DAY, wall_ns=NOON + 24 * HOUR_NS) is None
        assert spent(book, MONTH, wall_ns=NOON + 24 * HOUR_NS) is not None

    def test_whoever_is_ahead_of_us_by_some_seconds_at_midnight_counts_when_we_are_there(self) -> None:
        book = UsageBook()
        assert spent(book, DAY) is None
        self.heard(book, 100, day="2026-11-23")
        assert spent(book, DAY, wall_ns=NOON + 24 * HOUR_NS) is not None

    def test_only_what_has_a_budget_is_told_and_only_what_is_new(self) -> None:
        book = UsageBook()
        use(book, 30)
        assert book.changes_since(0, NOON, 9) == ([], 0)
        book.follow_budgets({self.NAME: DAY})
        told, seen = book.changes_since(0, NOON, 9)
        assert told == [BudgetUse(self.NAME, "2026-11-22", 30, 30, 0)]
        assert book.changes_since(seen, NOON, 9) == ([], seen)
        book.set_aside(KEY, ACME, 10)
        told, seen = book.changes_since(seen, NOON, 9)
        assert told == [BudgetUse(self.NAME, "2026-11-22", 30, 30, 10)]
        assert book.changes_since(0, NOON, 9)[0] == told, "a new subscription hears all of it"

    def test_of_many_changes_the_oldest_are_told_first_and_none_is_left_out(self) -> None:
        book = UsageBook()
        keys = [KeyId(f"k{number}") for number in range(5)]
        book.follow_budgets({("key", key): DAY for key in keys})
        for key in keys:
            use(book, 1, key=key)
        seen, told = 0, []
        for _ in range(4):
            uses, seen = book.changes_since(seen, NOON, 2)
            told.append([each.name[1] for each in uses])
        assert told == [["k0", "k1"], ["k2", "k3"], ["k4"], []]

    def test_a_budget_that_is_none_any_more_is_neither_told_nor_remembered(self) -> None:
        book = UsageBook()
        book.follow_budgets({self.NAME: DAY})
        use(book, 1)
        self.heard(book, 5)
        book.follow_budgets({})
        assert book.changes_since(0, NOON, 9)[0] == []
        assert len(book.others) == 0

    def test_what_was_told_today_is_told_as_nothing_tomorrow(self) -> None:
        book = UsageBook()
        book.follow_budgets({self.NAME: DAY})
        use(book, 30)
        told, _ = book.changes_since(0, NOON + 24 * HOUR_NS, 9)
        assert told == [BudgetUse(self.NAME, "2026-11-23", 0, 30)]


def test_who_is_gone_since_last_month_keeps_nobody_from_being_heard() -> None:
    book = UsageBook()
    book.others = OthersUsage(told_max=1)
    name = ("tenant", "acme")
    assert book.hear(GatewayId("gone"), BudgetUse(name, "2026-10-31", 1, 1), NOON)
    assert book.hear(GatewayId("new"), BudgetUse(name, "2026-11-22", 7, 7), NOON)
    assert not book.hear(GatewayId("newer"), BudgetUse(name, "2026-11-22", 9, 9), NOON)
    assert book.others.used(name, "2026-11-22").in_month == 7


class TestTakingOver:
    NAME = ("key", KEY)

    def test_what_ended_in_the_process_before_counts_and_is_written_here(self) -> None:
        book = UsageBook()
        book.follow_budgets({self.NAME: DAY})
        today, yesterday = (UsageKey(day, KEY, ACME) for day in ("2026-11-22", "2026-11-21"))
        book.take_over({today: UsageAmounts(1, 59, 0, 1), yesterday: UsageAmounts(1, 39, 0, 1)}, {}, NOON)
        assert spent(book, DAY) is None, "of today, 60"
        assert spent(book, MONTH) == Spent("key", "month", 100, MONTH_LEFT_NS), "of the month, 100"
        assert book.take_rows() == {today: UsageAmounts(1, 59, 0, 1), yesterday: UsageAmounts(1, 39, 0, 1)}
        (told,), _ = book.changes_since(0, NOON, 10)
        assert (told.tokens_in_day, told.tokens_in_month) == (60, 100), "others are told of it as of this gateway's own"

    def test_what_runs_in_the_process_before_holds_its_part_until_it_is_said_to_be_over(self) -> None:
        before = UsageBook()
        before.follow_budgets({self.NAME: DAY})
        before.set_aside(KEY, ACME, 70)
        before.set_aside(KeyId("free"), ACME, 5)
        assert before.held() == {self.NAME: 70}, "whose budget it is"
        book = UsageBook()
        book.follow_budgets({self.NAME: DAY})
        book.take_over({}, before.held(), NOON)
        book.set_aside(KEY, ACME, 30)
        assert spent(book, DAY) is not None
        book.take_over({}, {self.NAME: 60}, NOON)
        assert spent(book, DAY) is None
        assert book.held() == {self.NAME: 90}
        book.take_over({}, {}, NOON)
        assert book.held() == {self.NAME: 30}
