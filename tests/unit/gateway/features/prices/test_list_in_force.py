"""Prices in force, since when they apply, and the events that tell the core of others."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.core.features.prices.events import PricesChanged
from gateway.core.features.prices.price_list import PriceList
from gateway.core.vocabulary import GatewayId
from gateway.features.prices.file import read_prices
from gateway.features.prices.list_in_force import ListInForce
from mesh.config import LogFormat, LoggingConfig
from mesh.faults import ConfigError
from mesh.logs import make_logger
from mesh.reloader import ReloadRefused
from tests.support.background import in_background
from tests.support.clock import StillClock

HOUR_NS = 3600 * 10**9
MONDAY_NS = 1_774_828_800 * 10**9
TEXT = """
version: 1
currency: EUR
valid_until: 2026-03-31
regions:
  us: {replica_hour: 2.5, hours: [{from: "06:00", until: "24:00", replica_hour: 3.5}]}
"""


@dataclass
class Wall(StillClock):
    """Clock whose date moves with it."""

    now: int = MONDAY_NS

    def wall_ns(self) -> int:
        return self.now


@dataclass
class Bench:
    path: Path
    clock: Wall = field(default_factory=Wall)
    told: list[PricesChanged] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def part(self, path: Path | None) -> ListInForce:
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"), io.StringIO())
        return ListInForce(path, self.hear, self.clock, log)

    def hear(self, event: PricesChanged) -> None:
        self.told.append(event)
        self.heard.set()

    @property
    def hours(self) -> list[int | None]:
        """Price of a replica's hour in each event that the core got."""
        return [None if each.prices is None else each.prices.replicas[0].hour_micros for each in self.told]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path / "prices.yaml")
    made.write(TEXT)
    return made


def other(bench: Bench) -> PriceList:
    return replace(read_prices(bench.path), currency="USD", digest="other")


def test_the_region_files_list_is_in_force_from_the_start(bench: Bench) -> None:
    part = bench.part(bench.path)
    part.take(None, "")
    assert (bench.hours, part.source) == ([2_500_000], "file")
    bench.clock.now += 90 * 10**9
    assert part.age_s == 90
    described = part.describe()
    assert described is not None
    assert (described["since_s"], described["next_change_s"]) == (90, 6 * 3600 - 90)


def test_a_list_that_cannot_be_read_stops_the_start_and_never_what_runs(bench: Bench) -> None:
    bench.write("version: 2")
    with pytest.raises(ConfigError, match=r"prices.yaml: line 1: version"):
        bench.part(bench.path)
    bench.write(TEXT)
    part = bench.part(bench.path)
    part.take(None, "")
    bench.write("version: 2")
    with pytest.raises(ReloadRefused):
        asyncio.run(part.reload())
    part.take(None, "")
    assert bench.hours == [2_500_000]
    bench.write(TEXT.replace("2.5", "2.6"))
    asyncio.run(part.reload())
    assert (bench.hours, part.fault) == ([2_500_000, 2_600_000], "")


def test_what_a_controller_says_comes_before_the_file_and_the_file_is_there_when_it_says_no_more(bench: Bench) -> None:
    part = bench.part(bench.path)
    part.take(other(bench), "")
    assert (part.source, part.list and part.list.currency) == ("controller", "USD")
    bench.clock.now += HOUR_NS
    part.take(other(bench), "")
    assert part.age_s == 3600, "the same again is no news"
    part.take(None, "what a controller says of prices: currency: is missing")
    assert (part.source, part.age_s) == ("file", 0)
    assert "currency" in part.fault
    part.take(None, "")
    assert part.fault == ""


def test_another_file_is_moved_to_and_one_that_went_bad_is_not(bench: Bench, tmp_path: Path) -> None:
    part = bench.part(bench.path)
    part.take(None, "")
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 2")
    part.move(bad)
    assert (part.files(), bool(part.fault)) == ([bench.path], True)
    part.move(None)
    part.take(None, "")
    assert (bench.hours, part.files(), part.describe()) == ([2_500_000, None], [], None)


def test_the_core_is_told_when_the_hour_begins_and_not_before(bench: Bench) -> None:
    part = bench.part(bench.path)
    part.take(None, "")
    bench.clock.now += 6 * HOUR_NS - 1
    part.look()
    assert bench.hours == [2_500_000]
    assert part.wait_s() == 0
    bench.clock.now += 1
    part.look()
    part.look()
    assert bench.hours == [2_500_000, 3_500_000]
    assert part.wait_s() == 60, "the wall clock may be set meanwhile"
    assert part.valid_s is not None
    bench.clock.now += 48 * HOUR_NS
    assert part.valid_s < 0


async def test_it_wakes_by_itself_for_a_list_that_has_come(bench: Bench) -> None:
    part = bench.part(None)
    async with in_background(part.run()):
        part.take(other(bench), "")
        await bench.heard.wait()
    assert bench.hours == [2_500_000]
    assert part.wait_s() is not None


def test_nobody_who_says_nothing_is_described(bench: Bench) -> None:
    part = bench.part(None)
    part.take(None, "")
    assert (part.describe(), part.wait_s(), part.age_s, bench.told) == (None, None, None, [])
