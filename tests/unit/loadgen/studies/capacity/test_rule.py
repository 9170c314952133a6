"""The rule is a sum of what each thing takes; gateways share a region's load, and each is one more peer."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from loadgen.studies.capacity.rule import CapacityCosts, CarriedLoad, gateways_for, mesh_max, needed, share_of

NOTHING = CapacityCosts(**{each.name: 0.0 for each in fields(CapacityCosts)})


@pytest.mark.parametrize(("cost", "load", "cores"), [
    (replace(NOTHING, request_us=500.0), CarriedLoad(requests_per_s=400.0), 0.2),
    (replace(NOTHING, peered_request_us=100.0), CarriedLoad(requests_per_s=400.0), 0.0),
    (replace(NOTHING, peered_request_us=100.0), CarriedLoad(requests_per_s=400.0, peers=4.0), 0.04),
    (replace(NOTHING, peer_request_us=50.0), CarriedLoad(requests_per_s=400.0, peers=4.0), 0.08),
    (replace(NOTHING, prompt_kb_us=10.0), CarriedLoad(requests_per_s=100.0, prompt_kb=10.256), 0.01),
    (replace(NOTHING, prompt_kb_us=10.0), CarriedLoad(requests_per_s=100.0, prompt_kb=0.1), 0.0),
    (replace(NOTHING, chunk_us=50.0), CarriedLoad(chunks_per_s=10_000.0), 0.5),
    (replace(NOTHING, forward_us=2_000.0), CarriedLoad(forwards_per_s=100.0), 0.2),
    (replace(NOTHING, forward_kb_us=20.0), CarriedLoad(forwards_per_s=100.0, prompt_kb=10.256), 0.02),
    (replace(NOTHING, forwarded_chunk_us=150.0), CarriedLoad(forwarded_chunks_per_s=1_000.0), 0.15),
    (replace(NOTHING, idle_stream_us=1.0), CarriedLoad(streams=1_000.0), 0.001),
    (replace(NOTHING, replica_us=3_000.0), CarriedLoad(replicas=100.0), 0.3),
    (replace(NOTHING, busy_peer_us=2_000.0, peer_us=9.0), CarriedLoad(peers=99.0), 0.198),
    (replace(NOTHING, base_us=20_000.0), CarriedLoad(), 0.02),
    (replace(NOTHING, peering_us=20_000.0), CarriedLoad(), 0.0),
    (replace(NOTHING, peering_us=20_000.0), CarriedLoad(peers=9.0), 0.02),
])  # fmt: skip
def test_each_thing_takes_its_cores(cost: CapacityCosts, load: CarriedLoad, cores: float) -> None:
    assert needed(cost, load).all_cores == pytest.approx(cores)


def test_peers_at_rest_take_less() -> None:
    costs = replace(NOTHING, busy_peer_us=2_000.0, peer_us=100.0, busy_peer_bytes=5_000.0, peer_bytes=200.0)
    rest = needed(costs, CarriedLoad(peers=10.0), is_busy=False)
    assert rest.all_cores == pytest.approx(0.001)
    assert rest.bytes_per_s == 2_000.0
    assert needed(costs, CarriedLoad(peers=10.0)).bytes_per_s == 50_000.0


def test_memory_descriptors_and_bytes_are_sums_as_well() -> None:
    costs = replace(
        NOTHING, base_kib=100_000.0, stream_kib=20.0, replica_kib=100.0, peer_kib=500.0, base_files=30.0,
        stream_files=2.0, replica_files=1.0, peer_files=3.0, forward_bytes=4_000.0, busy_peer_bytes=1_000.0,
        peering_kib=1_024.0, peering_files=4.0,
    )  # fmt: skip
    found = needed(costs, CarriedLoad(streams=1_000.0, replicas=10.0, peers=4.0, forwards_per_s=2.0))
    assert found.memory_mib == pytest.approx((100_000 + 20_000 + 1_000 + 2_000) / 1024 + 1)
    assert found.descriptors == 30 + 2_000 + 10 + 12 + 4
    assert found.bytes_per_s == 4 * 1_000 + 2 * 4_000


def test_forwards_carry_prompts_and_chunks_and_those_of_others_as_well() -> None:
    costs = replace(NOTHING, forward_bytes=4_000.0, forwarded_chunk_bytes=300.0)
    load = CarriedLoad(forwards_per_s=2.0, prompt_kb=2.256, forwarded_chunks_per_s=1_200.0)
    sent = 2 * (4_000 + 2_000) + 1_200 * 300
    assert needed(costs, load).bytes_per_s == pytest.approx(sent)
    both = replace(load, served_share=1.0)
    assert needed(costs, both).bytes_per_s == pytest.approx(2 * sent)
    assert needed(costs, share_of(both, 4, 3)).bytes_per_s == pytest.approx(2 * sent / 4)


def test_gateways_of_a_region_share_its_load_and_have_all_of_the_mesh_as_peers() -> None:
    part = share_of(CarriedLoad(requests_per_s=100.0, prompt_kb=4.0, replicas=20.0), 4, 3)
    assert part == CarriedLoad(requests_per_s=25.0, prompt_kb=4.0, replicas=5.0, peers=11.0)


def test_as_many_gateways_are_named_as_are_enough() -> None:
    costs = replace(NOTHING, request_us=1_000.0)
    assert gateways_for(costs, CarriedLoad(requests_per_s=600.0), 3) == 1
    assert gateways_for(costs, CarriedLoad(requests_per_s=601.0), 3) == 2
    assert gateways_for(replace(costs, base_us=100_000.0), CarriedLoad(requests_per_s=1_001.0), 3) == 3


def test_where_peers_alone_take_a_core_no_number_is_enough() -> None:
    costs = replace(NOTHING, request_us=1_000.0, busy_peer_us=5_000.0)
    assert gateways_for(costs, CarriedLoad(requests_per_s=500.0), 20) == 1
    assert gateways_for(costs, CarriedLoad(requests_per_s=900.0), 20) == 3
    assert gateways_for(costs, CarriedLoad(requests_per_s=900.0), 60) is None
    assert gateways_for(costs, CarriedLoad(), 122) is None, "121 peers take 0.605 of a core"


def test_a_mesh_ends_where_heartbeats_take_the_core_of_each() -> None:
    costs = replace(NOTHING, base_us=100_000.0, busy_peer_us=5_000.0, peer_us=1_000.0)
    assert (mesh_max(costs, is_busy=True), mesh_max(costs, is_busy=False)) == (101, 501)
    assert mesh_max(replace(costs, peering_us=50_000.0), is_busy=True) == 91
    assert gateways_for(costs, CarriedLoad(), 101) == 1
    assert gateways_for(costs, CarriedLoad(), 102) is None
