from __future__ import annotations

import asyncio

import pytest

from gateway.config.targets import ReplicaConfig
from gateway.discovery.discovery import Discovery
from gateway.discovery.source import Report
from tests.fakes.engine import Tally
from tests.support.background import in_background


class FakeSource:
    def __init__(self, name: str) -> None:
        self.name = name
        self.started, self.ended = Tally(), Tally()
        self.looks = asyncio.Event()
        self.breaks = asyncio.Event()

    async def run(self, report: Report) -> None:
        self.report = report
        self.started.add()
        try:
            report(())
            self.looks.set()
            await self.breaks.wait()
            raise RuntimeError("a fault of ours")
        finally:
            self.ended.add()

    async def first_look(self) -> None:
        await self.looks.wait()


async def test_each_source_runs_and_reports_under_its_name() -> None:
    found: list[tuple[str, tuple[ReplicaConfig, ...]]] = []
    sources = [FakeSource("a"), FakeSource("b")]
    discovery = Discovery(sources, lambda *each: found.append(each))
    async with in_background(discovery.run()):
        await discovery.first_look()
    assert found == [("a", ()), ("b", ())]


async def test_sources_come_and_go_and_those_that_stay_are_left_alone() -> None:
    gone, stays, comes = FakeSource("gone"), FakeSource("stays"), FakeSource("comes")
    discovery = Discovery([gone, stays], lambda *_: None)
    async with in_background(discovery.run()):
        await discovery.first_look()
        discovery.replace([stays, comes])
        await comes.started.reaches(1)
        await gone.ended.reaches(1)
        assert (stays.started.count, stays.ended.count) == (1, 0)


async def test_the_late_word_of_a_source_that_has_gone_is_not_heard() -> None:
    found: list[str] = []
    gone = FakeSource("gone")
    discovery = Discovery([gone], lambda name, _: found.append(name))
    async with in_background(discovery.run()):
        await discovery.first_look()
        discovery.replace([FakeSource("gone")])
        gone.report(())
    assert found == ["gone"]


async def test_a_fault_of_ours_is_for_the_supervisor() -> None:
    source, other = FakeSource("a"), FakeSource("b")
    source.breaks.set()
    with pytest.raises(ExceptionGroup):
        await Discovery([source, other], lambda *_: None).run()
    assert (source.ended.count, other.ended.count) == (1, 1)


async def test_without_sources_there_is_nothing_to_wait_for() -> None:
    await Discovery([], lambda *_: None).first_look()
