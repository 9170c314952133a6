from __future__ import annotations

import asyncio
import io
import math
import random
from pathlib import Path

import pytest

from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.tokens.config import IssuerConfig
from mesh.tokens.counters import AT_START, BY_INTERVAL, UNKNOWN_KEY, TokenCounters
from mesh.tokens.fetching import FetchFailed
from mesh.tokens.issuer import Issuer, IssuerDependencies
from tests.fakes.issuer import FakeIssuer, ec_key
from tests.support.clock import StillClock
from tests.support.gateways import until

SECOND = 1_000_000_000
CONFIG = IssuerConfig(name="corp", issuer="https://login.example.net", audiences=("nightside",))


class Both(StillClock):
    """Clock whose wall time moves with its monotonic time."""

    def wall_ns(self) -> int:
        return self.now


class Source:
    """Result of each fetch: keys of an issuer, or a fault."""

    def __init__(self) -> None:
        self.issuer = FakeIssuer()
        self.fault = ""
        self.text: bytes | None = None
        self.gate: asyncio.Event | None = None
        self.fetches = 0

    async def fetch(self, _: IssuerConfig) -> bytes:
        self.fetches += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fault:
            raise FetchFailed(self.fault)
        return self.issuer.key_set() if self.text is None else self.text


class Stand:
    def __init__(self, folder: Path | None = None, config: IssuerConfig = CONFIG) -> None:
        self.clock, self.source, self.log, self.counters = Both(SECOND), Source(), io.StringIO(), TokenCounters()
        self.folder, self.config = folder, config
        self.issuer = self.another()

    def another(self) -> Issuer:
        """Issuer as after a restart."""
        log = make_logger(LoggingConfig(LogFormat.JSON), "gw", self.log)
        around = IssuerDependencies(
            "gw", self.folder, self.clock, log, self.counters, self.source.fetch, random.Random(1)
        )
        (issuer,) = around.issuers("clients", [self.config])
        return issuer

    def lines(self) -> list[str]:
        return self.log.getvalue().splitlines()


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_keys_are_known_once_they_have_been_fetched() -> None:
    stand = Stand()
    assert not stand.issuer.is_usable
    assert math.isinf(stand.issuer.age_s())
    await stand.issuer.fetch(AT_START)
    assert stand.issuer.is_usable
    assert stand.issuer.keys.ids == ["key-1"]


async def test_keys_that_stay_the_same_stay_the_same_object_and_others_are_another() -> None:
    stand = Stand()
    await stand.issuer.fetch(AT_START)
    before = stand.issuer.keys
    await stand.issuer.fetch(BY_INTERVAL)
    assert stand.issuer.keys is before
    stand.source.issuer.keys = [ec_key("key-2")]
    await stand.issuer.fetch(BY_INTERVAL)
    assert stand.issuer.keys.ids == ["key-2"]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"keys": []}', b"<html>"])
async def test_an_issuer_that_is_dead_or_talks_nonsense_keeps_its_keys_until_they_are_stale(text: bytes) -> None:
    stand = Stand()
    await stand.issuer.fetch(AT_START)
    if text:
        stand.source.text = text
    else:
        stand.source.fault = "connection refused"
    stand.clock.now += CONFIG.stale_after_ns
    await stand.issuer.fetch(BY_INTERVAL)
    assert stand.issuer.is_usable
    stand.clock.now += 1
    assert not stand.issuer.is_usable
    assert stand.issuer.describe()["fault"]
    stand.source.fault, stand.source.text = "", None
    await stand.issuer.fetch(BY_INTERVAL)
    assert stand.issuer.is_usable
    assert stand.issuer.describe()["fault"] == ""


async def test_a_failure_is_told_once_and_so_is_its_end() -> None:
    stand = Stand()
    stand.source.fault = "connection refused"
    for _ in range(3):
        await stand.issuer.fetch(BY_INTERVAL)
    assert len(stand.lines()) == 1
    assert "connection refused" in stand.lines()[0]
    stand.source.fault = ""
    for _ in range(3):
        await stand.issuer.fetch(BY_INTERVAL)
    assert len(stand.lines()) == 2


async def test_what_was_known_is_known_after_a_restart_without_the_issuer(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    await stand.issuer.fetch(AT_START)
    stand.clock.now += 3600 * SECOND
    stand.source.fault = "connection refused"
    again = stand.another()
    again.restore()
    assert again.keys.ids == ["key-1"]
    assert again.age_s() == 3600
    await again.fetch(AT_START)
    assert again.is_usable
    stand.clock.now += CONFIG.stale_after_ns
    late = stand.another()
    late.restore()
    assert not late.is_usable, "a restart makes nothing younger"


async def test_what_another_issuer_left_and_what_is_damaged_is_not_believed(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    await stand.issuer.fetch(AT_START)
    stand.config = IssuerConfig(name="corp", issuer="https://other.example.net", audiences=("nightside",))
    moved = stand.another()
    moved.restore()
    assert len(moved.keys) == 0
    (file,) = files_in(tmp_path)
    assert (file.stat().st_mode & 0o777) == 0o640
    file.write_text("{}")
    stand.config = CONFIG
    damaged = stand.another()
    damaged.restore()
    assert len(damaged.keys) == 0
    assert "cached_issuer_keys_unusable" in stand.lines()[-1]


async def test_a_disk_that_takes_nothing_is_told_and_changes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stand = Stand(tmp_path / "file" / "folder")
    await stand.issuer.fetch(AT_START)
    assert stand.issuer.is_usable
    assert "issuer_keys_not_persisted" in stand.lines()[-1]


async def test_unknown_keys_cost_their_issuer_one_fetch_an_interval_whoever_shows_them() -> None:
    stand = Stand()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stand.issuer.run())
        assert await stand.issuer.refetched(), "the first fetch is waited for"
        for _ in range(100):
            assert not await stand.issuer.refetched()
        assert stand.source.fetches == 1
        stand.clock.now += CONFIG.refetch_interval_ns
        stand.source.gate = asyncio.Event()
        asking = [tasks.create_task(stand.issuer.refetched()) for _ in range(100)]
        await until(lambda: stand.source.fetches == 2)
        late = tasks.create_task(stand.issuer.refetched())
        await asyncio.sleep(0)
        stand.source.gate.set()
        assert [await each for each in (*asking, late)] == [True] * 101
        assert stand.source.fetches == 2
        running.cancel()
    counted = {
        sample.labels["cause"]: sample.value for each in stand.counters.fetches.collect() for sample in each.samples
    }
    assert counted[UNKNOWN_KEY] == 1


async def test_nobody_waits_longer_than_an_issuer_may_take() -> None:
    stand = Stand(config=IssuerConfig(name="corp", issuer=CONFIG.issuer, audiences=("a",), timeout_ns=1_000_000))
    assert not await stand.issuer.refetched(), "nothing fetches"


async def test_it_goes_on_after_failures_and_comes_back_by_itself() -> None:
    quick = IssuerConfig(name="corp", issuer=CONFIG.issuer, audiences=("a",), refresh_interval_ns=1_000_000)
    stand = Stand(config=quick)
    stand.source.fault = "connection refused"
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stand.issuer.run())
        await until(lambda: stand.source.fetches >= 3)
        stand.source.fault = ""
        await until(lambda: stand.issuer.is_usable)
        running.cancel()
