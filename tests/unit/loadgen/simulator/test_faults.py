"""Faults as values: when they strike, and that random ones heal in time and hit existing targets."""

from __future__ import annotations

import random
from dataclasses import replace

from loadgen.simulator.faults import CONTROLLER, FaultKind, FaultPlaces, SimFault, random_faults

PLACES = FaultPlaces(["us/0", "eu/0"], ["us/gw", "eu/gw"], ["us", "eu"])
UNTIL_NS = 10_000_000_000


def test_a_flapping_fault_strikes_several_times() -> None:
    fault = SimFault(FaultKind.REPLICA_CRASH, 10, 3, "us/0", times=3, every_ns=5)
    assert list(fault.spans()) == [(10, 13), (15, 18), (20, 23)]


def test_random_faults_heal_in_time_and_hit_what_there_is() -> None:
    faults = random_faults(random.Random(1), PLACES, count=400, until_ns=UNTIL_NS)
    assert {fault.kind for fault in faults} == {
        kind
        for kind in FaultKind
        if kind.is_drawn and not kind.needs_controller and kind is not FaultKind.GATEWAY_SILENT
    }
    for fault in faults:
        assert max(end_ns for _, end_ns in fault.spans()) <= UNTIL_NS
        assert fault.times == 1 or fault.every_ns >= fault.lasts_ns
        assert bool(fault.amount) == fault.kind.needs_amount
        known = PLACES.regions if fault.kind.joins_regions else [*PLACES.replicas, *PLACES.gateways]
        assert fault.target in known
        assert (fault.other in PLACES.regions) == fault.kind.joins_regions


def test_beside_a_controller_everything_may_happen_to_it_and_to_the_ways_there() -> None:
    places = replace(PLACES, has_controller=True)
    faults = random_faults(random.Random(1), places, count=600, until_ns=UNTIL_NS)
    assert {fault.kind for fault in faults} == {kind for kind in FaultKind if kind.is_drawn and not kind.needs_pair}
    assert {fault.target for fault in faults if fault.kind.hits_controller} == {CONTROLLER}
    assert any(CONTROLLER in (fault.target, fault.other) for fault in faults if fault.kind.joins_regions)


def test_one_region_cannot_be_cut_off() -> None:
    alone = FaultPlaces(["us/0"], ["us/gw"], ["us"])
    faults = random_faults(random.Random(1), alone, count=100, until_ns=UNTIL_NS)
    assert not any(fault.kind.joins_regions for fault in faults)


def test_a_seed_draws_the_same_faults() -> None:
    one, other = (random_faults(random.Random(5), PLACES, count=20, until_ns=UNTIL_NS) for _ in range(2))
    assert one == other
