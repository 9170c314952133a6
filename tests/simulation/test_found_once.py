"""Worlds in which a defect of the core, of the simulator or of its checkers was found once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadgen.simulator.chaos import (
    ChaosRun,
    Finding,
    run_breaking_chaos,
    run_chaos,
    run_disaggregated_chaos,
    run_moving_pools_chaos,
    run_silent_chaos,
)


@pytest.mark.parametrize(
    ("world", "seed"),
    [
        pytest.param(
            run_chaos, 990240, id="held requests, all released at once, are overtaken by one that fits a peer"
        ),
        pytest.param(run_chaos, 990599, id="a replica idles once the request held for it is held elsewhere"),
        pytest.param(
            run_disaggregated_chaos, 990017, id="a batch request follows a best-effort one to an idle replica"
        ),
        pytest.param(run_disaggregated_chaos, 990529, id="a best-effort request is refused where nothing is idle"),
        pytest.param(run_disaggregated_chaos, 996327, id="an attempt begins at the moment at which the owner has left"),
        pytest.param(run_breaking_chaos, 990452, id="a request waits for a peer that was never heard"),
        pytest.param(
            run_moving_pools_chaos, 1010244, id="a decode worker that comes back has requests from before, unreported"
        ),
        pytest.param(run_moving_pools_chaos, 1210833, id="a peer that cannot be asked delays the question to another"),
        pytest.param(run_silent_chaos, 1400792, id="a request waits for engines that are down beside peers with room"),
    ],
)
def test_nothing_is_found_any_more(world: Callable[[int], ChaosRun | Finding], seed: int) -> None:
    found = world(seed)
    assert not isinstance(found, Finding), found
