"""Holds a run's results: request records as their clients measured them, other counters, and percentiles of values.

It only counts what it is given: it must know no clock, no socket and no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from gateway.core.vocabulary import RegionName, ServiceClass
from loadgen.vocabulary import RequestEnd

_MILLISECOND_NS = 1_000_000
_Number = TypeVar("_Number", int, float)
_SHARES = (0.10, 0.25, 0.50, 0.75, 0.90, 0.99)


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One request, as its client measured it. Times count from the start of the run."""

    client_region: RegionName
    end: RequestEnd
    sent_ns: int
    """Time at which the request was due; waiting counts from then, however late it was sent."""
    ended_ns: int
    first_token_ns: int | None = None
    served_by: RegionName | None = None
    """Region whose engine answered."""
    output_tokens: int = 0
    tokens_in_time: int = 0
    """Output tokens that arrived while load was still being sent."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    detail: str = ""
    lag_ns: int = 0
    """Delay between the due time and the actual sending, caused by a busy load generator."""
    tries: int = 1
    """Number of times that the client sent the request."""
    failed_by: str = ""
    """Component that caused the failure of a failed request, where the run distinguishes causes."""
    tenant: str = ""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    breaks: int = 0
    """Times that its answer broke."""
    sent_to: str = ""
    """Address that it was sent to, where there are real ones; empty if it was not sent."""
    pause_ns: int | None = None
    """Longest pause from a break of the answer to the next token; None: it never broke, or nothing continued it."""


@dataclass(frozen=True, slots=True)
class PrefixTokens:
    """Prompt tokens that engines looked up in their prefix caches, and those that they found there."""

    queried: int = 0
    hit: int = 0

    def __add__(self, other: PrefixTokens) -> PrefixTokens:
        return PrefixTokens(self.queried + other.queried, self.hit + other.hit)

    def __sub__(self, other: PrefixTokens) -> PrefixTokens:
        return PrefixTokens(self.queried - other.queried, self.hit - other.hit)


@dataclass(frozen=True, slots=True)
class MachineUse:
    """CPU use of the whole machine, from 0 to 1 of all its CPUs."""

    mean_share: float
    peak_share: float
    """CPU use of the busiest sample."""
    own_share: float | None = None
    """Mean share of the CPUs that the run's own processes used, if known."""

    def as_document(self) -> dict[str, float | None]:
        shares = {"mean_share": self.mean_share, "peak_share": self.peak_share, "own_share": self.own_share}
        return {name: None if share is None else round(share, 3) for name, share in shares.items()}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles: each is a value that was measured."""

    p10_ns: int
    p25_ns: int
    p50_ns: int
    p75_ns: int
    p90_ns: int
    p99_ns: int
    mean_ns: float


def percentiles(values: Iterable[int]) -> Percentiles | None:
    """Percentiles of the values; None when there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p10, p25, p50, p75, p90, p99 = (ordered[_rank(share, len(ordered))] for share in _SHARES)
    return Percentiles(p10, p25, p50, p75, p90, p99, sum(ordered) / len(ordered))


def times_per_token_ns(completed: Iterable[RequestReport]) -> Iterator[int]:
    """Mean time per token after the first, from the first token to the end, of each answer with several tokens."""
    for each in completed:
        if each.first_token_ns is not None and each.output_tokens > 1:
            yield (each.ended_ns - each.first_token_ns) // (each.output_tokens - 1)


def quantile(values: Sequence[_Number], share: float) -> _Number:
    """Nearest-rank quantile of the values."""
    return sorted(values)[_rank(share, len(values))]


def _rank(share: float, count: int) -> int:
    return max(0, math.ceil(share * count) - 1)


def in_milliseconds(values: Percentiles, digits: int) -> dict[str, float]:
    """Percentiles as a document with the keys `p10` to `p99` and `mean`."""
    named = {field.name.removesuffix("_ns"): getattr(values, field.name) for field in fields(values)}
    return {name: round(value_ns / _MILLISECOND_NS, digits) for name, value_ns in named.items()}
