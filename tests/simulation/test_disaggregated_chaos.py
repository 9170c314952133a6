"""Worlds with many failures, with prefill and decode in separate engines: no request is lost, every kept block is
released, and no decode worker gets an ordinary request. `make test` plays three of them, `make nightly` a hundred.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind, Finding, run_chaos
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(100, few=3, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.DISAGGREGATED, seeds) > 10 * len(seeds)


@pytest.mark.nightly
def test_the_first_of_them_ends_well_and_twice_the_same() -> None:
    one, other = run_chaos(29, ChaosKind.DISAGGREGATED), run_chaos(29, ChaosKind.DISAGGREGATED)

    assert not isinstance(one, Finding)
    assert one == other
