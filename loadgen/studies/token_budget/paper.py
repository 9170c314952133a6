"""Figures published by the token-budget paper (arXiv 2604.09613), for comparison, and reconstructions of its two loads.

It published no curve of its loads, only values derived from them. The steps are those of the smoothest curve (shares
within a group fall by one factor for each thousand tokens) with its published figures: for Azure F(2K) = 0.80 and F(8K)
= 0.917, with service times that make μ = 13.5 and 0.37 requests a second; for LMSYS F(8K) = 0.9994, by its eight long
instances, and μ = 6.8. Answers are its shares of the total, Appendix A. A test compares them with its figures.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from loadgen.planner.lengths import LengthStep, WeightedShapes, from_steps

RATE_PER_S = 1_000.0
THRESHOLD = 8_192
GRID = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
"""Thresholds of Fig. 6."""
TRANSIENT_REQUESTS = 10_000
TRANSIENT_WARM_UP = 0.2


@lru_cache(maxsize=8)
def _drawn(steps: tuple[LengthStep, ...], output_share: tuple[float, float], seed: int, draws: int) -> WeightedShapes:
    """Lengths of a load, which each table and figure of the page asks for again."""
    return from_steps(steps, output_share, seed=seed, draws=draws)


class PaperLoad(NamedTuple):
    """One of the paper's two loads."""

    name: str
    steps: tuple[LengthStep, ...]
    output_share: tuple[float, float]
    homogeneous: int
    short: int
    long: int
    savings: float
    throughputs: tuple[float, float, float | None]
    """Table 1: μ of an instance for all requests, of a short and of a long one."""

    def lengths(self, seed: int = 42, draws: int = 8_000) -> WeightedShapes:
        return _drawn(self.steps, self.output_share, seed, draws)


AZURE = PaperLoad(
    "Azure-derived",
    (
        LengthStep(256, 0.2429), LengthStep(512, 0.2210), LengthStep(1_024, 0.1917), LengthStep(2_048, 0.1444),
        LengthStep(4_096, 0.0885), LengthStep(8_192, 0.0285), LengthStep(16_384, 0.0397),
        LengthStep(32_768, 0.0285), LengthStep(65_536, 0.0148),
    ),
    (0.10, 0.05),
    361, 72, 229, 0.166,
    (3.0, 13.5, 0.37),
)  # fmt: skip
LMSYS = PaperLoad(
    "LMSYS-derived",
    (
        LengthStep(64, 0.25876), LengthStep(128, 0.23746), LengthStep(256, 0.20854), LengthStep(512, 0.16083),
        LengthStep(1_024, 0.09566), LengthStep(2_048, 0.03384), LengthStep(4_096, 0.00424),
        LengthStep(8_192, 0.00007), LengthStep(16_384, 0.0006),
    ),
    (0.755, 0.10),
    265, 155, 8, 0.385,
    (4.1, 6.8, None),
)  # fmt: skip
LOADS = (AZURE, LMSYS)


class Latency(NamedTuple):
    """A row of Table 3."""

    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_ms: float
    tpot_p99_ms: float


TABLE_3 = {"homogeneous": Latency(0.02, 0.91, 12, 13), "split": Latency(0.09, 1.60, 25, 29)}
FIGURE_6 = {
    "Azure-derived": "rises with the threshold: 16.6 % at 8K, above 19 % at 16K to 32K, about 20 % at 32K",
    "LMSYS-derived": "highest at 8K, 38.5 %, then falls",
}


class FleetProjection(NamedTuple):
    """A row of Table 5: Qwen3-235B on MI300X at 10,000 requests a second."""

    nodes: int
    gpus: int
    musd_per_year: float


TABLE_5 = {"homogeneous": FleetProjection(197, 1_576, 50.6), "split": FleetProjection(137, 1_096, 35.2)}
TABLE_5_RATE_PER_S = 10_000.0
