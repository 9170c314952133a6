"""Costs are slopes between few and many, and readings of the bench without what the gateway takes at rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.main import RelayPlan
from loadgen.bench.relay.measures import Effort
from loadgen.bench.relay.relays import FORWARD, NIGHTSIDE
from loadgen.studies.capacity.measuring import FEW, HELD, MANY, PEERS, HeldAtRest, _Sizes

BASE, PEERING, REPLICA, PEER = (
    HeldAtRest(10_000.0, 80_000.0, 30.0),
    HeldAtRest(4_000.0, 900.0, 3.0),
    HeldAtRest(500.0, 60.0, 1.0),
    HeldAtRest(2_000.0, 400.0, 2.0),
)
IDLE_US = BASE.us + FEW * REPLICA.us
BOTH_IDLE_US = 2 * BASE.us + 2 * PEERING.us + FEW * REPLICA.us + 2 * PEER.us
CHUNKS_PER_S = Effort().streams * 20


def rest(replicas: int, peers: int) -> HeldAtRest:
    return HeldAtRest(*(
        getattr(BASE, each) + replicas * getattr(REPLICA, each) + peers * getattr(PEER, each)
        + (peers > 0) * getattr(PEERING, each)
        for each in ("us", "kib", "files")
    ))  # fmt: skip


def figures(
    request_us: float, chunk_us: float, kb_us: float, idle_us: float, stream_us: float
) -> dict[RelayFigure, float]:
    """Readings of a relay on a core of its own, which is idle for some of each second."""
    busy = 1 - idle_us / 1e6
    long_us = (request_us + 8 * chunk_us + (300 - 0.256) * kb_us) / busy
    return {
        RelayFigure.CPU_PER_REQUEST: request_us / busy,
        RelayFigure.CPU_PER_CHUNK: chunk_us + idle_us / CHUNKS_PER_S + stream_us / 20,
        RelayFigure.LONG_PROMPTS_PER_CPU_S: 1e6 / long_us,
        RelayFigure.MEMORY_PER_STREAM: 22.0,
    }


def test_costs_are_slopes_and_readings_without_what_is_taken_at_rest() -> None:
    plan = RelayPlan(
        effort=Effort(), measures=(), relays=(), rivals=Path(), relay_core=0, load_core=1, sibling_core=1, seed=1
    )
    sizes = _Sizes(Path(), plan, Console(quiet=True))
    sizes._rest = {(FEW, 0): rest(FEW, 0), (MANY, 0): rest(MANY, 0)} | {(FEW, each): rest(FEW, each) for each in PEERS}
    sizes._asked_us = {0: 700.0} | {each: 700.0 + 90.0 + 20.0 * each for each in PEERS}
    sizes._held = HeldAtRest(IDLE_US + HELD, 0.0, rest(FEW, 0).files + 2 * HELD)
    sizes._busy_us = rest(FEW, PEERS[1]).us + PEERS[1] * 1_000.0
    sizes._rest_bytes, sizes._busy_bytes = 10_000.0, 50_000.0
    sizes._simulated_us = tuple(rest(FEW, 0).us + PEERING.us + PEERS[1] * each for each in (800.0, 1_200.0))  # type: ignore[assignment]
    sizes._simulated_bytes = (10_000.0, 50_000.0)
    sizes._forward_bytes, sizes._chunk_bytes = 4_000.0, 300.0
    read = {
        NIGHTSIDE.name: figures(500.0, 50.0, 6.0, IDLE_US, 1.0),
        FORWARD.name: figures(2_000.0, 150.0, 15.0, BOTH_IDLE_US, 2.0),
    }
    costs = sizes.costs({(name, figure): value for name, each in read.items() for figure, value in each.items()})
    assert [costs.request_us, costs.chunk_us, costs.prompt_kb_us] == pytest.approx([500.0, 50.0, 6.0])
    assert [costs.peered_request_us, costs.peer_request_us] == pytest.approx([90.0, 20.0])
    assert [costs.forward_us, costs.forwarded_chunk_us, costs.forward_kb_us] == pytest.approx([2_000.0, 150.0, 15.0])
    assert [costs.base_us, costs.base_kib, costs.base_files] == pytest.approx([BASE.us, BASE.kib, BASE.files])
    assert [costs.peering_us, costs.peering_kib, costs.peering_files] == pytest.approx([4_000.0, 900.0, 3.0])
    assert [costs.replica_us, costs.replica_kib, costs.replica_files] == pytest.approx([500.0, 60.0, 1.0])
    assert [costs.peer_us, costs.peer_kib, costs.peer_files] == pytest.approx([2_000.0, 400.0, 2.0])
    assert costs.busy_peer_us == pytest.approx(3_000.0)
    assert [costs.idle_stream_us, costs.stream_files, costs.stream_kib] == pytest.approx([1.0, 2.0, 22.0])
    assert [costs.forward_bytes, costs.forwarded_chunk_bytes] == [4_000.0, 300.0]
    told_by_four_us = (50_000.0 - 4 * 500.0) / 4
    expected = pytest.approx([1_000.0, 2 * told_by_four_us / 4])
    assert [costs.peer_bytes, costs.busy_peer_bytes] == expected, "of ten pairs, and of six that are busy"
    slow = sizes.simulated(costs)
    assert [slow.peer_us, slow.busy_peer_us] == pytest.approx([800.0, 1_200.0])
    assert [slow.peer_bytes, slow.busy_peer_bytes] == expected
    assert [slow.base_us, slow.request_us] == [costs.base_us, costs.request_us]
