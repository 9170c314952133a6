"""Figures published by ELDR, and a value that follows from them."""

from __future__ import annotations

from typing import Any

from loadgen.studies.data import read_data

PAPER = read_data("eldr/paper.yaml", dict[str, Any])


_TASKS = {
    "experts": -PAPER["fewer_experts"],
    "tpot_p50_ms": max(PAPER["tpot_p50_tasks"]),
    "tpot_p99_ms": max(PAPER["tpot_p99_tasks"]),
}
_LANGUAGES = {"tpot_p50_ms": max(PAPER["tpot_p50_languages"]), "tpot_p99_ms": max(PAPER["tpot_p99_languages"])}
_AIMS: dict[str, dict[str, float]] = {"published": _TASKS, "tasks": _TASKS, "languages": _LANGUAGES}


def aims_of(workload: str) -> dict[str, float]:
    """Largest changes by figure that reach what the paper has on that kind of workload, the weakest of its models: of
    experts against round robin, of times against the best balancer. Empty for a workload that the paper has not."""
    return _AIMS.get(workload, {})


def intercept_in_experts() -> float:
    """Fixed time of a layer, in units of reading one expert: a + 128·b = 4.7·(a + 16·b), solved for a / b."""
    few, many = PAPER["ratio_experts"]
    return float((many - PAPER["moe_layer_ratio"] * few) / (PAPER["moe_layer_ratio"] - 1))
