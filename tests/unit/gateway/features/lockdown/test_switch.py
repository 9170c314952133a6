from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from gateway.core.events import Event
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.vocabulary import GatewayId
from gateway.features.lockdown.switch import REASON_LENGTH_MAX, LockdownSwitch, lockdown_file
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.threads import threads_taken

GATEWAY = GatewayId("us-1")


class Still(Clock):
    def wall_time(self) -> str:
        return "2026-03-01T12:00:00Z"


class Started:
    """A gateway that has just started."""

    def __init__(self, folder: Path | None) -> None:
        self.events: list[Event] = []
        self.stream = io.StringIO()
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GATEWAY, self.stream)
        self.lockdown = LockdownSwitch(GATEWAY, folder, submit=self.events.append, clock=Still(), log=log)
        self.lockdown.restore()

    def levels(self) -> list[str]:
        return [json.loads(line)["level"] for line in self.stream.getvalue().splitlines()]


async def test_an_order_is_in_force_at_once_and_after_a_restart_until_it_is_released(tmp_path: Path) -> None:
    first = Started(tmp_path)
    assert (first.events, first.levels()) == ([], [])
    answer = await first.lockdown.order(active=True, cut=True, reason="drill")
    assert (answer.active, answer.is_kept, answer.problem) == (True, True, "")
    assert first.events == [LockdownChanged(active=True, cut=True)]
    assert first.levels() == ["critical"]

    second = Started(tmp_path)
    assert second.events == [LockdownChanged(active=True, cut=True)]
    assert second.lockdown.describe() == {"active": True, "reason": "drill", "since": "2026-03-01T12:00:00Z"}
    assert second.levels() == ["critical"]
    await second.lockdown.order(active=False, cut=False, reason="")
    assert second.events[-1] == LockdownChanged(active=False)

    assert Started(tmp_path).events == []


async def test_the_core_hears_of_it_before_the_disk_does(tmp_path: Path) -> None:
    started = Started(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(started.lockdown.order(active=True, cut=False, reason=""))
        await asyncio.sleep(0)
        assert started.events == [LockdownChanged(active=True)]


async def test_without_a_folder_it_is_in_force_and_said_to_be_forgotten(tmp_path: Path) -> None:
    started = Started(None)
    answer = await started.lockdown.order(active=True, cut=False, reason="")
    assert started.events == [LockdownChanged(active=True)]
    assert (answer.is_kept, answer.problem) == (False, "no state.folder is configured")


async def test_a_disk_that_fails_is_told_and_stops_no_order(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    started = Started(None)
    started.lockdown._file = lockdown_file(tmp_path / "file", GATEWAY)
    answer = await started.lockdown.order(active=True, cut=False, reason="")
    assert started.events == [LockdownChanged(active=True)]
    assert not answer.is_kept
    assert started.levels() == ["critical", "error"]


async def test_a_disk_that_fails_is_told_though_whoever_ordered_it_has_left(tmp_path: Path) -> None:
    started = Started(tmp_path / "file" / "state")
    (tmp_path / "file").touch()
    with threads_taken() as free:
        ordering = asyncio.get_running_loop().create_task(started.lockdown.order(active=True, cut=False, reason=""))
        await asyncio.sleep(0)
        ordering.cancel()
        asyncio.get_running_loop().call_soon(free)
        with pytest.raises(asyncio.CancelledError):
            await ordering
    assert started.levels() == ["critical", "error"]


async def test_a_file_that_cannot_be_trusted_means_locked_down(tmp_path: Path) -> None:
    await Started(tmp_path).lockdown.order(active=False, cut=False, reason="")
    path = lockdown_file(tmp_path, GATEWAY).path
    path.write_bytes(path.read_bytes().replace(b"false", b"true "))
    started = Started(tmp_path)
    assert started.events == [LockdownChanged(active=True)]
    assert "what was ordered before the restart is not known" in started.lockdown.state.reason
    assert started.levels() == ["critical"]


async def test_the_newest_of_several_orders_is_kept(tmp_path: Path) -> None:
    started = Started(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        for number in range(10):
            tasks.create_task(started.lockdown.order(active=bool(number % 2), cut=False, reason=str(number)))
    assert Started(tmp_path).lockdown.state.reason == "9"


async def test_a_reason_is_bounded(tmp_path: Path) -> None:
    answer = await Started(tmp_path).lockdown.order(active=True, cut=False, reason="x" * 10_000)
    assert len(answer.reason) == REASON_LENGTH_MAX


async def test_gateways_that_share_a_folder_have_orders_of_their_own(tmp_path: Path) -> None:
    await Started(tmp_path).lockdown.order(active=True, cut=False, reason="")
    assert lockdown_file(tmp_path, GatewayId("us-2")).read() is None


async def test_what_another_process_was_ordered_meanwhile_is_taken_in_either_way(tmp_path: Path) -> None:
    old, new = Started(tmp_path), Started(tmp_path)
    await old.lockdown.order(active=True, cut=False, reason="drill")
    new.lockdown.restore()
    new.lockdown.restore()
    assert new.events == [LockdownChanged(active=True)]
    await old.lockdown.order(active=False, cut=False, reason="")
    new.lockdown.restore()
    assert new.events[1:] == [LockdownChanged(active=False)]


async def test_streams_are_cut_in_the_other_process_as_well_though_it_was_locked_down_before(tmp_path: Path) -> None:
    old, new = Started(tmp_path), Started(tmp_path)
    await old.lockdown.order(active=True, cut=False, reason="drill")
    new.lockdown.restore()
    await old.lockdown.order(active=True, cut=True, reason="drill")
    new.lockdown.restore()
    new.lockdown.restore()
    assert new.events == [LockdownChanged(active=True), LockdownChanged(active=True, cut=True)]
