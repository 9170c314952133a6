"""Figures published by BalanceRoute, for comparison: its Tables 1 and 2, and values derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loadgen.studies.data import read_data

JSQ = "join shortest queue"


class PaperRow(NamedTuple):
    """Max − min in tokens, TPOT p95 in ms, tokens per second."""

    gap: float
    tpot_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Paper:
    heavy: dict[int, dict[str, PaperRow]]
    """Rows by the number of workers."""
    capped: dict[int, dict[str, PaperRow]]
    aims: dict[str, dict[str, tuple[float, float]]]
    """Gains at 8 workers, by the name of the tables they are taken from."""


PAPER = read_data("balanceroute/paper.yaml", Paper)


_CAPPED = ("capped", "azure2024")
"""Loads of the kind of the paper's public trace, Azure's; all others are held against its own trace."""


def published(load: str, workers: int) -> dict[str, PaperRow]:
    """The paper's table for a load of that kind; empty where it has none."""
    return (PAPER.capped if load in _CAPPED else PAPER.heavy).get(workers, {})


def aims_of(load: str) -> dict[str, tuple[float, float]]:
    """The paper's gains at 8 workers on its trace of that kind: the divisor of JSQ's max − min, and the multiple of the
    strongest baseline's throughput."""
    return PAPER.aims["capped" if load in _CAPPED else "heavy"]


def running_at_most(table: dict[str, PaperRow], run: str, workers: int) -> float:
    """Upper bound by Little's law on the mean number of requests per worker: tokens per second times the time per
    token. The table has p95, which is above the mean."""
    found = table[run]
    return found.tokens_per_s * found.tpot_ms / 1_000 / workers
