from __future__ import annotations

import numpy as np

from gateway.features.expert_locality.fit.engine_placement import PlacementForm, placement_document
from gateway.features.expert_locality.fit.expert_placement import place_experts

PLACED = place_experts(np.array([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 9.0, 8.0, 7.0]], np.float32), 2)


def test_sglang_finds_each_expert_in_a_slot_of_its_rank() -> None:
    """Physical expert i is on rank i // (slots of a rank), as in SGLang's `expert_location.py`."""
    document = placement_document(PlacementForm.SGLANG, PLACED, 2, dense_layers=1)
    assert list(document) == ["physical_to_logical_map"], "its keys are arguments of a function there"
    dense, *rows = document["physical_to_logical_map"]
    assert dense == [0, 1, 2, 3, 4, 5]
    assert len(rows) == len(PLACED)
    for row, ranks in zip(rows, PLACED.tolist(), strict=True):
        assert sorted(row) == [0, 1, 2, 3, 4, 5]
        assert [ranks[expert] for expert in row] == [0, 0, 0, 1, 1, 1]


def test_vllm_ascend_is_told_the_experts_of_each_device() -> None:
    document = placement_document(PlacementForm.VLLM_ASCEND, PLACED, 2)
    assert document["moe_layer_count"] == 2
    for number, layer in enumerate(document["layer_list"]):
        assert (layer["layer_id"], layer["device_count"]) == (number, 2)
        for rank, device in enumerate(layer["device_list"]):
            assert device["device_id"] == rank
            assert device["device_expert"] == np.flatnonzero(PLACED[number] == rank).tolist()


def test_it_is_plain_json() -> None:
    for form in PlacementForm:
        document = placement_document(form, PLACED, 2)
        assert all(type(each) is int for each in _numbers(document)), form


def _numbers(value: object) -> list[object]:
    if isinstance(value, dict):
        return [each for part in value.values() for each in _numbers(part)]
    if isinstance(value, list):
        return [each for part in value for each in _numbers(part)]
    return [value]
