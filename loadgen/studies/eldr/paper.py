"""Figures published by ELDR in its text; the values of its plots are not available. Values only."""

from __future__ import annotations

MOE_LAYER_RATIO = 4.7
"""Fig. 2: ratio of the time of a mixture-of-experts layer of Qwen3-30B-A3B on an MI300X with 128 active experts to that
with 16, at a batch of 64; the batch hardly matters."""
RATIO_EXPERTS = (16, 128)
FEWER_EXPERTS = 0.22
"""Fig. 13: a step, against round robin, Qwen3-30B-A3B, tasks, 8P16D, over batch sizes."""
TPOT_P50_TASKS = (-0.139, -0.070)
"""Change against the best of four balancers, over three models."""
TPOT_P99_TASKS = (-0.060, -0.034)
TPOT_P50_LANGUAGES = (-0.100, -0.059)
TPOT_P99_LANGUAGES = (-0.062, 0.015)
BEYOND_DOMAIN = (-0.069, -0.014)
"""Median TPOT against `Domain`, tasks."""
IDF_GAIN = 0.015
"""ρ of count-idf over plain count, mean of six cells."""
MASK_GAIN = (0.005, 0.032)
"""ρ of the chosen layers over all of them."""
PREFILL_DECODE = (0.70, 0.92)
VANILLA_P50, VANILLA_P99 = -0.098, 0.174
"""Vanilla K-means at τ = 0.1 against round robin, at its best and at its worst."""
BALANCED_P50, BALANCED_P99 = -0.126, -0.068
NEAREST_P99 = 0.079
"""τ = 0: the worst tail against round robin."""
BY_K = {8: (-0.080, -0.025), 16: (-0.098, -0.008), 24: (-0.102, -0.011)}
"""Table 2, languages: p50 and p99 against round robin."""
SHARDED = (-0.043, -0.027)
"""Median TPOT of a 235 B model under expert parallelism, with placement."""
ROUTE_MS = 0.15
FIT_S = 10


def intercept_in_experts() -> float:
    """Fixed time of a layer, in units of reading one expert: a + 128·b = 4.7·(a + 16·b), solved for a / b."""
    few, many = RATIO_EXPERTS
    return (many - MOE_LAYER_RATIO * few) / (MOE_LAYER_RATIO - 1)
