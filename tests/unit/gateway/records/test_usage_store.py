from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.core.vocabulary import GatewayId, TenantName
from gateway.records import usage_store
from gateway.records.peer_usage import BudgetUse
from gateway.records.usage_book import UsageAmounts, UsageKey
from gateway.records.usage_store import UsageStore, UsageUnusable, days_before, usage_file
from gateway.request.callers import KeyId
from tests.support.disks import full_disk


def line(day: str = "2026-11-22", key: str = "a", tenant: str = "acme") -> UsageKey:
    return UsageKey(day, KeyId(key), TenantName(tenant))


def is_private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


@contextmanager
def opened(path: Path | None) -> Iterator[UsageStore]:
    store = UsageStore(path)
    store.open()
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = usage_file(tmp_path / "state", GatewayId("us-1"))
    assert found is not None
    return found


async def test_rows_add_up_and_outlive_the_process(path: Path) -> None:
    with opened(path) as store:
        await store.add({line(): UsageAmounts(1, 10, 5, 2)})
        await store.add({line(): UsageAmounts(1, 10, 5, 2), line(key="b"): UsageAmounts(1, 1, 0, 1)})
    with opened(path) as store:
        assert store.since("2026-11-01") == {
            line(): UsageAmounts(2, 20, 10, 4),
            line(key="b"): UsageAmounts(1, 1, 0, 1),
        }
        assert store.since("2026-11-23") == {}
    assert is_private(path)


async def test_rows_are_asked_for_by_day_and_by_whose_they_are() -> None:
    rows = {
        line(key=key, tenant=tenant, day=day): UsageAmounts(1, 1, 0, 1)
        for day in ("2026-11-21", "2026-11-22")
        for key, tenant in (("a", "acme"), ("b", "acme"), ("b", "other"))
    }
    with opened(None) as store:
        await store.add(rows)
        assert len((await store.asked("2026-11-21", "2026-11-22"))[0]) == 6
        by_key, _ = await store.asked("2026-11-22", "2026-11-30", "key")
        by_tenant, is_cut = await store.asked("2026-11-22", "2026-11-30", "tenant")
    assert by_key == [
        (line(key="a", tenant=""), UsageAmounts(1, 1, 0, 1)),
        (line(key="b", tenant=""), UsageAmounts(2, 2, 0, 2)),
    ]
    assert [(each.tenant, used.requests) for each, used in by_tenant] == [("acme", 2), ("other", 1)]
    assert not is_cut


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_store, "ROWS_ASKED_MAX", 2)
    with opened(None) as store:
        await store.add({line(key=f"k{number}"): UsageAmounts(1) for number in range(3)})
        rows, is_cut = await store.asked("2026-11-22", "2026-11-22")
    assert (len(rows), is_cut) == (2, True)


async def test_a_clock_set_years_ahead_for_a_while_costs_a_week_at_most(path: Path) -> None:
    days = [f"2026-{month:02}-01" for month in range(1, 12)]
    with opened(path) as store:
        await store.add({line(day=day): UsageAmounts(1) for day in days})
        await store.forget_before(days_before("2126-11-22", 400))
        assert [each.day for each in store.since("2000-01-01")] == days[1:]


async def test_old_days_are_forgotten(path: Path) -> None:
    with opened(path) as store:
        await store.add({line(day="2025-01-01"): UsageAmounts(1), line(): UsageAmounts(1)})
        await store.forget_before(days_before("2026-11-22", 400))
        assert list(store.since("2000-01-01")) == [line()]


def test_a_damaged_file_is_put_aside_and_said_to_be(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database " * 1000)
    store = UsageStore(path)
    with pytest.raises(UsageUnusable, match=r"damaged, and lies at us-1\.usage\.sqlite\.damaged now"):
        store.open()
    store.add_at_once({line(): UsageAmounts(1)})
    store.close()
    assert path.with_name(f"{path.name}.damaged").read_bytes().startswith(b"no database")
    with opened(path) as again:
        assert len(again.since("2026-01-01")) == 1


def test_another_program_s_file_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA application_id = 7")
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    store = UsageStore(path)
    with pytest.raises(UsageUnusable, match="is not usage of format 1; nothing is written down") as unusable:
        store.open()
    assert unusable.value.hides_usage
    with pytest.raises(OSError, match="cannot be used yet"):
        store.add_at_once({line(): UsageAmounts(1)})
    assert store.since("2026-01-01") == {}
    store.close()
    assert path.read_bytes()[100:] == before[100:]


class TestAFullDisk:
    async def test_it_hides_no_row_and_takes_rows_again_once_there_is_room(self, path: Path) -> None:
        with opened(path) as store:
            await store.add({line(): UsageAmounts(5)})
        store = UsageStore(path)
        with full_disk():
            store.open()
            assert store.since("2026-11-01") == {line(): UsageAmounts(5)}
            with pytest.raises(OSError, match=r"usage\.sqlite: "):
                await store.add({line(): UsageAmounts(1)})
            with pytest.raises(OSError, match=r"usage\.sqlite: "):
                await store.forget_before("2026-12-01")
        await store.add({line(): UsageAmounts(1)})
        store.close()
        with opened(path) as again:
            assert again.since("2026-11-01") == {line(): UsageAmounts(6)}

    async def test_a_file_that_cannot_be_made_is_made_once_there_is_room(self, path: Path) -> None:
        store = UsageStore(path)
        with full_disk():
            with pytest.raises(UsageUnusable, match="nothing is written down until it can be used") as unusable:
                store.open()
            assert not unusable.value.hides_usage, "nothing was used before"
            assert await store.open_again("2026-11-01") is None
            with pytest.raises(OSError, match="cannot be used yet"):
                await store.add({line(): UsageAmounts(1)})
        assert await store.open_again("2026-11-01") == ({}, {})
        await store.add({line(): UsageAmounts(1)})
        store.close()
        with opened(path) as again:
            assert again.since("2026-11-01") == {line(): UsageAmounts(1)}


def test_one_that_could_not_be_read_tells_what_it_has_once_it_can(path: Path) -> None:
    us, name = GatewayId("us-2"), ("key", "a")
    use = BudgetUse(name, "2026-11-22", 3, 30)
    with opened(path) as store:
        store.add_at_once({line(): UsageAmounts(5)})
        store.keep_told_at_once({(us, name): use})
    kept = path.rename(path.with_name("kept"))
    path.mkdir()
    store = UsageStore(path)
    with pytest.raises(UsageUnusable, match="nothing is written down") as unusable:
        store.open()
    assert unusable.value.hides_usage
    path.rmdir()
    kept.rename(path)
    assert asyncio.run(store.open_again("2026-11-01")) == ({line(): UsageAmounts(5)}, {(us, name): use})
    assert asyncio.run(store.open_again("2026-11-01")) is None, "it is in use"
    store.close()


async def test_a_file_that_cannot_be_written_says_so(path: Path) -> None:
    with opened(path) as store:
        with closing(sqlite3.connect(path)) as other:
            other.execute("DROP TABLE used")
        with pytest.raises(OSError, match="no such table"):
            await store.add({line(): UsageAmounts(1)})


async def test_the_last_words_of_others_outlive_the_process_until_their_days_are_forgotten(path: Path) -> None:
    us, eu, name = GatewayId("us-2"), GatewayId("eu-1"), ("key", "a")
    old, today = BudgetUse(name, "2026-10-01", 3, 30), BudgetUse(name, "2026-11-22", 4, 40)
    with opened(path) as store:
        await store.keep_told({(us, name): old, (eu, name): old})
        store.keep_told_at_once({(eu, name): today})
        await store.forget_before("2026-11-01")
    with opened(path) as store:
        assert store.told() == {(eu, name): today}


def test_a_file_of_a_version_that_knew_of_no_others_goes_on(path: Path) -> None:
    with opened(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE told")
        connection.commit()
    with opened(path) as store:
        assert store.told() == {}
