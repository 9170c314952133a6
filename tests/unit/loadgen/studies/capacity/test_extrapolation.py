"""Large meshes are sized by the simulator's largest run, and the first size that breaks is found."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from loadgen.studies.capacity.extrapolation import (
    LargeRun,
    largest_run,
    region_load,
    regions_of,
    replicas_of_one,
    sized,
)
from loadgen.studies.capacity.rule import CapacityCosts

RUN = LargeRun(100, 1_000, 0.2, 0.1, 0.25, 3.0, 400.0)
COSTS = replace(
    CapacityCosts(**{each.name: 0.0 for each in fields(CapacityCosts)}),
    request_us=500.0, chunk_us=50.0, forward_us=2_000.0, forwarded_chunk_us=150.0, replica_us=200.0,
    busy_peer_us=1_000.0, base_us=10_000.0,
)  # fmt: skip


def document(kind: str) -> dict[str, Any]:
    point = {"kind": kind, "regions": 100, "replicas_a_region": 1_000}
    return {"measurements": [{
        "point": point, "requests": 620_000, "simulated_s": 31.0, "forwards": 62_000, "busy_share": 0.25,
        "rss_bytes_max": 3 << 30, "cpu_s": 248.0,
    }]}  # fmt: skip


def test_the_largest_run_is_read_from_the_figures() -> None:
    assert largest_run(document("large")) == RUN
    with pytest.raises(ValueError, match="no run of the largest fleet"):
        largest_run(document("fleet"))


def test_a_regions_load_grows_with_its_replicas() -> None:
    load = region_load(RUN, 100)
    assert [load.requests_per_s, load.forwards_per_s] == pytest.approx([18.0, 2.0])
    assert [load.chunks_per_s, load.forwarded_chunks_per_s] == pytest.approx([10_800.0, 1_200.0])
    assert load.streams == pytest.approx(0.25 * 100 * 12 * 1.1)
    assert load.served_share == 1.0, "forwards that it sends are served by others, and it serves as many"
    assert region_load(RUN.full, 100).requests_per_s == pytest.approx(4 * load.requests_per_s)


def test_one_gateway_carries_a_region_up_to_the_number_that_is_found() -> None:
    most = replicas_of_one(COSTS, RUN, 3)
    (fits, above) = sized(COSTS, RUN, [(3, most), (3, most + 1)])
    assert (fits.gateways, above.gateways) == (1, 2)
    assert fits.alone.all_cores <= 0.6 < above.alone.all_cores
    assert fits.first == "chunks"
    assert replicas_of_one(COSTS, RUN, 100) < most, "more regions are more peers"


def test_more_gateways_help_until_their_heartbeats_take_the_core() -> None:
    most = regions_of(COSTS, RUN, 1_000)
    (fits, above) = sized(COSTS, RUN, [(most, 1_000), (most + 1, 1_000)])
    assert fits.gateways is not None
    assert fits.each is not None
    assert fits.each.all_cores <= 0.6
    assert (above.gateways, above.each) == (None, None)
