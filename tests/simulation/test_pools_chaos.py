"""Worlds with many failures, whose engines take requests of different lengths: no request is lost, none is sent to an
engine that takes less than the request may need, and none that fits is refused as too long. `make test` plays
three of them, `make nightly` a hundred.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind, Finding, run_chaos
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(100, few=3, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.POOLS, seeds) > 10 * len(seeds)


def test_the_first_of_them_ends_well_and_twice_the_same() -> None:
    one, other = run_chaos(22, ChaosKind.POOLS), run_chaos(22, ChaosKind.POOLS)

    assert not isinstance(one, Finding)
    assert one == other
