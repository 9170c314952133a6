"""Worlds in which a defect of the core or of its checkers was found once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadgen.simulator.chaos import Finding, Ordeal, endure, endure_breaking, endure_disaggregated


@pytest.mark.parametrize(
    ("world", "seed"),
    [
        pytest.param(endure, 990240, id="held requests, all released at once, are overtaken by one that fits a peer"),
        pytest.param(endure, 990599, id="a replica idles once the request held for it is held elsewhere"),
        pytest.param(endure_disaggregated, 990017, id="a batch request follows a best-effort one to an idle replica"),
        pytest.param(endure_disaggregated, 990529, id="a best-effort request is refused where nothing is idle"),
        pytest.param(endure_breaking, 990452, id="a request waits for a peer that was never heard"),
    ],
)
def test_nothing_is_found_any_more(world: Callable[[int], Ordeal | Finding], seed: int) -> None:
    found = world(seed)
    assert not isinstance(found, Finding), found
