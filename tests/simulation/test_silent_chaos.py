"""Worlds in which most answers come from other regions, which fall silent while they give them: what another target can
begin at once is taken back, none of it ends before that target has it, and no token is lost or told twice.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind, run_chaos
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(100, few=3, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.SILENT, seeds) > 5 * len(seeds)


def test_legs_at_silent_peers_are_taken_back() -> None:
    lines: list[str] = []
    run_chaos(5, ChaosKind.SILENT, lines.append)
    assert any("take back" in line for line in lines)
