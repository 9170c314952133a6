"""Figures published by BalanceRoute, for comparison: its Tables 1 and 2, and values derived from them."""

from __future__ import annotations

from typing import NamedTuple

JSQ = "join shortest queue"


class PaperRow(NamedTuple):
    """Max − min in tokens, TPOT p95 in ms, tokens per second."""

    gap: float
    tpot_ms: float
    tokens_per_s: float


HEAVY_8 = {
    "random": PaperRow(438_225, 85.15, 810.5),
    "round robin": PaperRow(254_798, 83.16, 846.7),
    "power of two": PaperRow(262_940, 84.01, 836.3),
    JSQ: PaperRow(215_110, 83.20, 842.8),
    "BR-0": PaperRow(51_927, 79.32, 942.5),
    "BR-H, oracle": PaperRow(23_577, 78.04, 1_028.9),
    "BR-H, Survival": PaperRow(40_757, 78.7, 979),
    "BR-H, ExactMatch": PaperRow(36_277, 78.8, 977),
}
CAPPED_8 = {
    "random": PaperRow(146_564, 90.3, 706),
    "round robin": PaperRow(110_049, 89.1, 771),
    "power of two": PaperRow(109_033, 89.3, 794),
    JSQ: PaperRow(104_737, 89.3, 785),
    "BR-0": PaperRow(54_051, 83.3, 854),
    "BR-H, oracle": PaperRow(35_301, 77.3, 957),
    "BR-H, Survival": PaperRow(44_010, 82.1, 893),
    "BR-H, ExactMatch": PaperRow(38_496, 82.3, 909),
}
HEAVY_4 = {
    "random": PaperRow(80_118, 66.30, 364.7),
    "round robin": PaperRow(68_108, 65.27, 365.7),
    "power of two": PaperRow(64_012, 65.40, 366.4),
    JSQ: PaperRow(75_326, 66.45, 365.4),
    "BR-0": PaperRow(9_711, 63.19, 407.1),
    "BR-H, oracle": PaperRow(6_576, 62.52, 415.3),
}
HEAVY_16 = {
    "random": PaperRow(638_062, 77.80, 923.6),
    "round robin": PaperRow(616_089, 77.91, 925.3),
    "power of two": PaperRow(688_283, 77.46, 927.3),
    JSQ: PaperRow(675_607, 77.40, 926.6),
    "BR-0": PaperRow(215_170, 74.92, 1_117.8),
    "BR-H, oracle": PaperRow(117_067, 72.04, 1_247.4),
}
HEAVY = {4: HEAVY_4, 8: HEAVY_8, 16: HEAVY_16}
CAPPED = {8: CAPPED_8}
AIMS = {"BR-H, oracle": (9.1, 1.22), "BR-H, ExactMatch": (5.9, 1.15), "BR-0": (4.1, 1.11)}
"""Aims at 8 workers: the divisor of JSQ's max − min, and the throughput over the strongest baseline's."""


def published(load: str, workers: int) -> dict[str, PaperRow]:
    """The paper's table for a load of that kind; empty where it has none."""
    return (CAPPED if load == "capped" else HEAVY).get(workers, {})


def running_at_most(table: dict[str, PaperRow], run: str, workers: int) -> float:
    """Upper bound by Little's law on the mean number of requests per worker: tokens per second times the time per
    token. The table has p95, which is above the mean."""
    found = table[run]
    return found.tokens_per_s * found.tpot_ms / 1_000 / workers
