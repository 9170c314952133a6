"""Figures published by ELDR, and a value that follows from them."""

from __future__ import annotations

from typing import Any

from loadgen.studies.data import read_data

PAPER = read_data("eldr/paper.yaml", dict[str, Any])


def intercept_in_experts() -> float:
    """Fixed time of a layer, in units of reading one expert: a + 128·b = 4.7·(a + 16·b), solved for a / b."""
    few, many = PAPER["ratio_experts"]
    return float((many - PAPER["moe_layer_ratio"] * few) / (PAPER["moe_layer_ratio"] - 1))
