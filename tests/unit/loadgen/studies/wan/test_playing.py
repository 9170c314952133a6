"""Faults are played one after the other: one that cannot be played, or a signal, loses none that was."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from loadgen.demo.processes import DemoFailure
from loadgen.hosts.namespaces import HostsUnavailable
from loadgen.studies.wan.faults import FAULTS, WanFault
from loadgen.studies.wan.outcomes import FaultOutcome, PhaseSeen
from loadgen.studies.wan.playing import play_faults

NONE = PhaseSeen(0, (), 0, ())
PARTITION, OUT, INTO, *_ = FAULTS


def outcome(fault: WanFault) -> FaultOutcome:
    phases = dict.fromkeys(("before", "during", "after"), NONE)
    return FaultOutcome(
        fault.name, phases, NONE, 0, None, None, {}, {}, None, 0.0, 0, 0, 0, 0, 1.0, 0.0, 0, (), 0, 0, 0, 0, 0, 0.0
    )


@pytest.mark.parametrize("error", [DemoFailure("a process died"), HostsUnavailable("no device")])
def test_a_fault_that_twice_cannot_be_played_holds_up_no_other_and_is_named(error: Exception) -> None:
    async def play(fault: WanFault, _kept: Path | None) -> FaultOutcome:
        if fault is OUT:
            async with asyncio.TaskGroup():
                raise error
        return outcome(fault)

    told: list[str] = []
    played = play_faults([PARTITION, OUT, INTO], 1, told.append, play=play)
    assert [each.fault for each in played.outcomes] == [PARTITION.name, INTO.name]
    assert played.unplayed == [f"{OUT.name} could not be played: {error}"]
    assert len(told) == 4


def test_a_fault_that_could_not_be_played_once_is_played_again_in_a_new_folder(tmp_path: Path) -> None:
    folders: list[Path | None] = []

    async def play(fault: WanFault, kept: Path | None) -> FaultOutcome:
        folders.append(kept)
        if len(folders) == 1:
            raise DemoFailure("the clients did not start")
        return outcome(fault)

    played = play_faults([PARTITION], 1, lambda _: None, tmp_path, play)
    assert (len(played.outcomes), played.unplayed, len({*folders})) == (1, [], 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_by_cancelling_so_that_hosts_are_removed(number: signal.Signals) -> None:
    removed: list[str] = []

    async def play(fault: WanFault, _kept: Path | None) -> FaultOutcome:
        if fault is PARTITION:
            return outcome(fault)
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            removed.append(fault.name)
        raise AssertionError("it was to be cancelled")

    played = play_faults([PARTITION, OUT, INTO], 1, lambda _: None, play=play)
    assert played.is_interrupted
    assert [each.fault for each in played.outcomes] == [PARTITION.name]
    assert removed == [OUT.name]


def test_each_round_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders: list[Path | None] = []

    async def play(fault: WanFault, kept: Path | None) -> FaultOutcome:
        folders.append(kept)
        return outcome(fault)

    play_faults([PARTITION, OUT], 2, lambda _: None, tmp_path, play)
    assert len({*folders}) == 4
    assert all(each is not None and each.parent == tmp_path for each in folders)
    play_faults([PARTITION], 1, lambda _: None, play=play)
    assert folders[-1] is None
