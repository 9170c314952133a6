"""Worlds in which a defect of the core, of the simulator or of its checkers was found once."""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind, Finding, run_chaos


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(
            ChaosKind.MESH,
            990240,
            id="held requests, all released at once, are overtaken by one that fits a peer",
            marks=pytest.mark.nightly,
        ),
        pytest.param(ChaosKind.MESH, 990599, id="a replica idles once the request held for it is held elsewhere"),
        pytest.param(
            ChaosKind.DISAGGREGATED, 990017, id="a batch request follows a best-effort one to an idle replica"
        ),
        pytest.param(ChaosKind.DISAGGREGATED, 990529, id="a best-effort request is refused where nothing is idle"),
        pytest.param(ChaosKind.DISAGGREGATED, 996327, id="an attempt begins at the moment at which the owner has left"),
        pytest.param(ChaosKind.BREAKING, 990452, id="a request waits for a peer that was never heard"),
        pytest.param(
            ChaosKind.MOVING_POOLS,
            1010244,
            id="a decode worker that comes back has requests from before, unreported",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ChaosKind.MOVING_POOLS,
            1210833,
            id="a peer that cannot be asked delays the question to another",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ChaosKind.CACHE_DIGESTS, 29172162, id="a gateway tells of a prompt that it kept while its policy was unread"
        ),
        pytest.param(ChaosKind.SILENT, 1400792, id="a request waits for engines that are down beside peers with room"),
    ],
)
def test_nothing_is_found_any_more(kind: ChaosKind, seed: int) -> None:
    found = run_chaos(seed, kind)
    assert not isinstance(found, Finding), found
