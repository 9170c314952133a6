"""Worlds with many failures of a controller: no policy is broken, no replica moves while it is frozen, every name has
an answer, each replica has one owner, and all replicas return to their home gateways. `make test` plays six of them,
`make nightly` three hundred.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import run_controlled_chaos, run_pair_chaos
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=3, at_once=20))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(run_controlled_chaos, seeds) > 50 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(100, few=3, at_once=20))
def test_nothing_is_found_with_two_of_which_one_leads(seeds: range) -> None:
    assert completed_without_finding(run_pair_chaos, seeds) > 50 * len(seeds)
