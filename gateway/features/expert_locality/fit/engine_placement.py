"""Files in which engines take a placement of experts at start, one for each cluster. The module only computes.

SGLang reads its file with `--init-expert-location` (its module `sglang.srt.eplb.expert_location`), vLLM Ascend with
`expert_map_path` in its `eplb_config` (its package `vllm_ascend.eplb`). vLLM itself has no such file: its balancer
(EPLB) moves experts by what it observes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, assert_never

import numpy as np

from gateway.features.expert_locality.fit.expert_placement import Ranks


class PlacementForm(StrEnum):
    """Engine whose form a placement is written in."""

    SGLANG = "sglang"
    VLLM_ASCEND = "vllm-ascend"


def placement_document(form: PlacementForm, placed: Ranks, ranks: int, *, dense_layers: int = 0) -> dict[str, Any]:
    """JSON document of one cluster's placement [layers, experts]. `dense_layers`: layers without experts before the
    first one with them, which SGLang numbers as well."""
    experts = placed.shape[1]
    in_slots = np.argsort(placed, axis=1, kind="stable")
    match form:
        case PlacementForm.SGLANG:
            # slots of a rank are adjacent, and a layer without experts needs a row of any order
            dense = [list(range(experts)) for _ in range(dense_layers)]
            return {"physical_to_logical_map": [*dense, *in_slots.tolist()]}
        case PlacementForm.VLLM_ASCEND:
            by_rank = in_slots.reshape(len(placed), ranks, experts // ranks).tolist()
            return {
                "moe_layer_count": len(placed),
                "layer_list": [_layer(number, devices) for number, devices in enumerate(by_rank)],
            }
        case _:
            assert_never(form)


def _layer(number: int, devices: list[list[int]]) -> dict[str, Any]:
    listed = [{"device_id": rank, "device_expert": experts} for rank, experts in enumerate(devices)]
    return {"layer_id": number, "device_count": len(devices), "device_list": listed}
