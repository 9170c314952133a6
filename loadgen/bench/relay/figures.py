"""Computes the bench's figures from its readings: medians, spreads, and ratios taken within one round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from loadgen.studies.numbers import Middle, middle_of

DIRECT = "direct"
"""Name for measurements without a relay: the cost of clients and engines alone."""


class RelayFigure(StrEnum):
    """Measured figure, the unit last."""

    CPU_PER_REQUEST = "cpu_per_request_us"
    CPU_PER_LONG_REQUEST = "cpu_per_8kb_request_us"
    CPU_PER_CHUNK = "cpu_per_chunk_us"
    TTFT_P50 = "ttft_p50_ms"
    TTFT_P99 = "ttft_p99_ms"
    ADDED_TTFT_P50 = "added_ttft_p50_ms"
    ADDED_TTFT_P99 = "added_ttft_p99_ms"
    CPU_PER_CHUNK_STALLED = "cpu_per_chunk_stalled_us"
    CPU_PER_LARGE_BODY = "cpu_per_large_body_ms"
    LARGE_BODY_GAP = "large_body_gap_ms"
    REQUESTS_PER_S = "requests_per_s"
    REQUESTS_PER_CPU_S = "requests_per_cpu_s"
    MEMORY_PER_STREAM = "memory_per_stream_kib"
    IDLE_CPU = "idle_cpu_percent"
    LONG_PROMPTS_PER_CPU_S = "long_prompt_requests_per_cpu_s"
    SHORT_JOB_CORES = "short_job_cores"
    LONG_JOB_CORES = "long_job_cores"
    SHORT_JOB_S = "short_job_s"
    LONG_JOB_S = "long_job_s"


_ADDED = {RelayFigure.TTFT_P50: RelayFigure.ADDED_TTFT_P50, RelayFigure.TTFT_P99: RelayFigure.ADDED_TTFT_P99}


@dataclass(frozen=True, slots=True)
class RelayReading:
    """One figure of one relay in one round, or of the process named by `part`."""

    round_number: int
    relay: str
    figure: RelayFigure
    value: float
    part: str = ""


def by_round(readings: Iterable[RelayReading], relay: str, figure: RelayFigure, part: str = "") -> dict[int, float]:
    return {
        each.round_number: each.value
        for each in readings
        if (each.relay, each.figure, each.part) == (relay, figure, part)
    }


def with_added(readings: Sequence[RelayReading]) -> list[RelayReading]:
    """Readings, extended by the time that each relay adds to the first token, against no relay in the same round."""
    added: list[RelayReading] = []
    for each in readings:
        base = by_round(readings, DIRECT, each.figure).get(each.round_number)
        if each.figure in _ADDED and each.relay != DIRECT and base is not None:
            added.append(RelayReading(each.round_number, each.relay, _ADDED[each.figure], each.value - base))
    return [*readings, *added]


def ratio(readings: Sequence[RelayReading], figure: RelayFigure, relay: str, base: str) -> Middle | None:
    """Ratio of a relay's figure to that of `base`, round by round; None without a round in which both were measured."""
    bases = by_round(readings, base, figure)
    values = by_round(readings, relay, figure)
    return middle_of(value / bases[number] for number, value in values.items() if bases.get(number))


def parts_of(readings: Iterable[RelayReading], relay: str) -> list[str]:
    return list(dict.fromkeys(each.part for each in readings if each.relay == relay and each.part))


def as_document(readings: Sequence[RelayReading]) -> Mapping[str, object]:
    """Medians and spreads by relay and figure, JSON-able."""
    document: dict[str, dict[str, object]] = {}
    for each in readings:
        values = middle_of(by_round(readings, each.relay, each.figure, each.part).values())
        assert values is not None
        name = f"{each.relay}: {each.part}" if each.part else each.relay
        document.setdefault(name, {})[each.figure] = {
            "median": round(values.median, 3),
            "low": round(values.low, 3),
            "high": round(values.high, 3),
        }
    return document
