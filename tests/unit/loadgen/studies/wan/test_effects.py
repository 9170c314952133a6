"""A fault whose links did nothing is told from one that was felt, by the counts of the network between the hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.demo.scenario import ROUND_TRIPS_FILE
from loadgen.hosts.wire_process import DirectionCounts, WireCounts
from loadgen.round_trips import read_round_trips
from loadgen.studies.wan.effects import RegionTraces, missing_traces, unfelt
from loadgen.studies.wan.faults import AP, EU, FAULTS, US, WanFault, base_links

SOUND = base_links(read_round_trips(ROUND_TRIPS_FILE))
BY_NAME = {each.name: each for each in FAULTS}
UNFELT = ["no packet was lost, held up or overtaken on the links that it changes"]


def counts(*directions: DirectionCounts) -> WireCounts:
    return WireCounts(directions, 0, 0.0)


def usual(carried: int, *, lost: int = 0, overtaking: int = 0, delay_ms: float = 75.0) -> DirectionCounts:
    return DirectionCounts(AP, US, carried, lost, overtaking, carried * delay_ms)


STRUCK = counts(usual(100, lost=3))


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name for each in FAULTS])
def test_links_that_carry_on_as_before_are_no_fault_of_links(fault: WanFault) -> None:
    healed = counts(usual(200, lost=3))
    assert [*unfelt(fault, SOUND, STRUCK, healed)][-1:] == (UNFELT if fault.changes_links else [])


@pytest.mark.parametrize(
    ("name", "healed"),
    [
        ("partition", usual(100, lost=4)),
        ("5 % loss", usual(200, lost=4)),
        ("reordering", usual(200, lost=3, overtaking=1)),
        ("10 × latency", DirectionCounts(AP, US, 200, 3, 0, 100 * 75.0 + 100 * 745.0)),
        ("bandwidth collapse", DirectionCounts(AP, US, 200, 3, 0, 100 * 75.0 + 100 * 80.0)),
        ("connections forgotten", usual(200, lost=4)),
    ],
)
def test_lost_late_and_overtaking_packets_are_felt(name: str, healed: DirectionCounts) -> None:
    assert [*unfelt(BY_NAME[name], SOUND, STRUCK, counts(healed))] == []


def test_losses_on_other_links_are_not_of_the_fault() -> None:
    assert [*unfelt(BY_NAME["partition"], SOUND, STRUCK, counts(DirectionCounts(EU, US, 9, 9, 0, 0.0)))] == UNFELT


def test_a_cut_link_carries_no_packet() -> None:
    found = [*unfelt(BY_NAME["partition"], SOUND, STRUCK, counts(usual(101, lost=9)))]
    assert found == [f"1 packets from {AP} to {US} crossed a link that is cut"]


FELT = RegionTraces(10.0, 1, 1, 2, 1)


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name for each in FAULTS])
def test_a_fault_that_was_felt_leaves_its_traces(fault: WanFault) -> None:
    off_s = 10.0 + abs(fault.clock_s)
    assert [*missing_traces(fault, replace(FELT, seconds_off=off_s))] == []


@pytest.mark.parametrize(
    ("name", "traces", "reason"),
    [
        ("clock ahead", FELT, "10 s off, and not 600 s"),
        ("partition", replace(FELT, seconds_off=600.0), "600 s off, and not 0 s"),
        ("name server that lies", replace(FELT, certificates_refused=0), "refused its certificate"),
        ("killed gateway", replace(FELT, restarts=0), "not started again"),
        ("killed gateway", replace(FELT, own_calls=0), "no client waited"),
        ("address that moves", replace(FELT, addresses=1), "one address only"),
    ],
)
def test_a_fault_that_nobody_felt_is_told(name: str, traces: RegionTraces, reason: str) -> None:
    (found,) = missing_traces(BY_NAME[name], traces)
    assert reason in found
