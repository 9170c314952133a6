from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.app import accounts
from gateway.app.accounts import UsageKeeper
from gateway.config.sections import UsageConfig
from gateway.core.vocabulary import GatewayId, TenantName
from gateway.records.peer_usage import BudgetName
from gateway.records.usage_book import Rows, UsageAmounts
from gateway.records.usage_store import UsageStore
from gateway.request.callers import KeyId
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger

ACME = TenantName("acme")


class Kept:
    """A usage store that was released to another process, and the messages which that process gets."""

    def __init__(self, folder: Path) -> None:
        self.path, self.stream = folder / "us-1.usage.sqlite", io.StringIO()
        self.log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        self.keeper = UsageKeeper(UsageConfig(), UsageStore(self.path), Clock(), self.log)
        self.keeper.begin()
        self.told: list[list[str]] = []
        self.hears, self.has_ended = True, False

    async def give(self) -> None:
        await self.keeper.release()
        self.keeper.tell(self._tell, lambda: self.has_ended)

    def use(self, *keys: str) -> None:
        for key in keys:
            self.keeper.book.settle(KeyId(key), ACME, 0, UsageAmounts(1, 2, 0, 3), Clock().wall_ns())

    def written(self) -> list[str]:
        self.keeper.close()
        store = UsageStore(self.path)
        store.open()
        rows = store.since("2000-01-01")
        store.close()
        return sorted(line.key for line in rows)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]

    def _tell(self, rows: Rows, _: Mapping[BudgetName, int]) -> None:
        if not self.hears:
            raise OSError("it reads nothing")
        self.told.append([line.key for line in rows])


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_file_that_cannot_be_created_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "us-1.usage.sqlite").symlink_to(tmp_path / "no folder" / "usage")
    kept = Kept(tmp_path)
    assert (kept.events(), kept.keeper.book.is_unknown) == (["usage_store_unavailable"], False)
    kept.keeper.close()


@pytest.mark.parametrize(
    ("content", "event"), [(b"no database", "usage_store_reset"), (None, "usage_store_unreadable")]
)
def test_a_file_that_is_damaged_and_one_that_may_hold_usage_are_told_apart(
    tmp_path: Path, content: bytes | None, event: str
) -> None:
    path = Kept(tmp_path / "before").path
    path = tmp_path / path.name
    if content is None:
        path.mkdir()
        (path / "something").touch()
    else:
        path.write_bytes(content * 1000)
    kept = Kept(tmp_path)
    assert kept.events() == [event]
    assert kept.keeper.book.is_unknown is (content is None)
    kept.keeper.close()


async def test_what_was_used_is_told_some_rows_at_a_time(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_ROWS_TOLD_MAX", 2)
    await kept.give()
    kept.use("a", "b", "c")
    await kept.keeper.flush()
    await kept.keeper.flush()
    assert kept.told == [["a", "b"], ["c"], []]
    assert kept.written() == []


async def test_the_file_is_taken_back_only_from_a_process_that_has_ended(kept: Kept) -> None:
    await kept.give()
    kept.hears = False
    kept.use("a")
    await kept.keeper.flush()
    assert kept.events() == ["usage_handover_failed"]
    kept.has_ended = True
    kept.use("b")
    await kept.keeper.flush()
    assert kept.written() == ["a", "b"]


@pytest.mark.parametrize("is_given", [False, True], ids=["before it serves", "while it serves"])
async def test_what_another_process_is_not_told_at_the_end_is_said_to_be_lost(kept: Kept, *, is_given: bool) -> None:
    if is_given:
        await kept.give()
    else:
        await kept.keeper.release()
    kept.hears = False
    kept.use("a")
    assert kept.written() == []
    assert kept.events()[-1] == "usage_lost_at_exit"
