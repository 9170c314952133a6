"""Worlds with many failures: no request is lost, answered twice or leaves its regions, and every request after
everything has healed is served. `make test` plays ten of them, `make nightly` two hundred.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=10, at_once=20))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.MESH, seeds) > 5 * len(seeds)
