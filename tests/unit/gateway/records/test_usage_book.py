from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.core.vocabulary import TenantName
from gateway.records.usage_book import OTHERS, Line, Spent, UsageBook, Used
from gateway.request.callers import NO_BUDGET, Budget, KeyId

KEY, ACME = KeyId("team-a"), TenantName("acme")
DAY = Budget(tokens_per_day=100)
MONTH = Budget(tokens_per_month=100)
HOUR_NS = 3600 * 10**9


def at(moment: str) -> int:
    return int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * 10**9


NOON = at("2026-11-22T12:00")


def use(book: UsageBook, tokens: int, wall_ns: int = NOON, key: KeyId = KEY, tenant: TenantName = ACME) -> None:
    book.set_aside(key, tenant, 10)
    book.settle(key, tenant, 10, Used(1, tokens - 1, 0, 1), wall_ns)


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

    def test_what_runs_counts_until_it_is_over_and_then_as_what_it_came_to(self) -> None:
        book = UsageBook()
        book.set_aside(KEY, ACME, 100)
        assert spent(book, DAY) is not None
        book.settle(KEY, ACME, 100, Used(1, 40, 0, 0), NOON)
        assert spent(book, DAY) is None

    def test_all_keys_of_a_tenant_use_up_one_budget(self) -> None:
        book = UsageBook()
        use(book, 60)
        use(book, 60, key=KeyId("team-b"))
        assert spent(book, DAY, NO_BUDGET) is None
        assert spent(book, NO_BUDGET, MONTH) == Spent("tenant", "month", 100, at("2026-12-01T00:00") - NOON)

    def test_what_was_written_down_counts_again(self) -> None:
        rows = {
            Line("2026-11-22", KEY, ACME): Used(1, 30, 0, 0),
            Line("2026-11-01", KEY, ACME): Used(1, 70, 0, 0),
            Line("2026-10-31", KEY, ACME): Used(1, 500, 0, 0),
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
            Line("2026-11-22", KEY, ACME): Used(2, 28, 0, 2),
            Line("2026-11-23", KEY, ACME): Used(1, 4, 0, 1),
        }
        assert book.take_rows() == {}

    def test_what_could_not_be_written_comes_again(self) -> None:
        book = UsageBook()
        use(book, 10)
        rows = book.take_rows()
        use(book, 10)
        book.give_back(rows)
        assert book.take_rows() == {Line("2026-11-22", KEY, ACME): Used(2, 18, 0, 2)}


class TestBounds:
    def test_many_names_end_in_one_row(self) -> None:
        book = UsageBook(unwritten_max=3)
        for number in range(10):
            use(book, 2, tenant=TenantName(f"t{number}"))
        rows = book.take_rows()
        assert len(rows) == 4
        assert rows[Line("2026-11-22", KeyId(""), OTHERS)].requests == 7

    def test_who_has_a_budget_or_something_running_is_not_forgotten(self) -> None:
        book = UsageBook(accounts_max=4)
        use(book, 100)
        assert spent(book, DAY) is not None
        book.set_aside(KeyId("runs"), TenantName("runs"), 5)
        for number in range(50):
            use(book, 2, key=KeyId(f"k{number}"), tenant=TenantName(f"t{number}"))
        assert len(book) <= 5
        assert spent(book, DAY) is not None
