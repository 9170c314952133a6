"""Worlds whose gateways stall and go on, while links lose and delay packets: no invariant breaks."""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind, chaos_scenario
from loadgen.simulator.faults import FaultKind
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=6, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.UNSTEADY, seeds) > 5 * len(seeds)


def test_gateways_stall_in_every_world_and_links_are_unsteady_in_most() -> None:
    worlds = [{each.kind for each in chaos_scenario(seed, ChaosKind.UNSTEADY).faults} for seed in range(1, 21)]
    assert all(FaultKind.GATEWAY_STALLED in kinds for kinds in worlds)
    assert sum(bool(kinds & {FaultKind.LOSSY_LINK, FaultKind.UNSTEADY_LINK}) for kinds in worlds) > 10
