"""Computes the figures of a report from request records, the same for simulated and live runs; units come last in
names.

It only counts; requests sent during the warm-up are left out, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from gateway.core.vocabulary import RegionName
from loadgen.report import PrefixTokens, RequestReport, in_milliseconds, percentiles, times_per_token_ns
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000
_BUCKETS = 24
"""Number of time buckets in which the time to first token is plotted."""

Figures = dict[str, Any]
"""Figures of a run or of one of its regions; JSON-able."""

Window = tuple[int, int]
"""Measured interval: from the end of the warm-up to the end of the load."""


def figures_on(records: Sequence[RequestReport], window: Window) -> Figures:
    """Figures of these records' requests as their clients measured them."""
    asked = asked_in(records, window)
    completed = [each for each in asked if each.end is RequestEnd.COMPLETED]
    answered = [each for each in asked if each.served_by is not None]
    told = [each for each in asked if each.cached_tokens is not None]
    load_s = (window[1] - window[0]) / _SECOND_NS
    in_time = [each for each in records if each.end is RequestEnd.COMPLETED and window[0] <= each.ended_ns <= window[1]]
    return {
        "requests": len(asked),
        "completed": len(completed),
        "failed": sum(each.end is RequestEnd.FAILED for each in asked),
        "unfinished": sum(each.end is RequestEnd.UNFINISHED for each in asked),
        "requests_per_s": round(len(in_time) / load_s, 3),
        "tokens_per_s": round(sum(_tokens_within(each, window) for each in records) / load_s, 2),
        "ttft_ms": distribution(
            each.first_token_ns - each.sent_ns for each in asked if each.first_token_ns is not None
        ),
        "duration_ms": distribution(each.ended_ns - each.sent_ns for each in completed),
        "tpot_ms": distribution(times_per_token_ns(completed)),
        "forwarded_share": share(sum(each.served_by != each.client_region for each in answered), len(answered)),
        "cached_share": share(
            sum(each.cached_tokens or 0 for each in told), sum(each.prompt_tokens or 0 for each in told)
        ),
        "in_flight_max": in_flight_max(records, window),
        "failures": dict(Counter(each.detail for each in asked if each.end is RequestEnd.FAILED).most_common()),
    }


def asked_in(records: Iterable[RequestReport], window: Window) -> list[RequestReport]:
    return [each for each in records if each.sent_ns >= window[0]]


def distribution(values_ns: Iterable[int]) -> dict[str, float] | None:
    """Nearest-rank percentiles and the mean, in milliseconds; None without values."""
    found = percentiles(values_ns)
    return None if found is None else in_milliseconds(found, digits=3)


def in_flight_max(records: Iterable[RequestReport], window: Window) -> int:
    """Largest number of requests open at once during the measured interval, whether queued or running."""
    changes = [
        change
        for each in records
        if each.sent_ns < window[1] and each.ended_ns > window[0]
        for change in ((each.sent_ns, 1), (each.ended_ns, -1))
    ]
    return max(accumulate(step for _, step in sorted(changes)), default=0)


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def hit_rate(tokens: Iterable[PrefixTokens]) -> float | None:
    counted = tuple(tokens)
    return share(sum(each.hit for each in counted), sum(each.queried for each in counted))


def flows(records: Iterable[RequestReport]) -> list[Figures]:
    """Requests per pair of client region and engine region."""
    counted = Counter((each.client_region, each.served_by) for each in records if each.served_by is not None)
    return [
        {"client_region": client, "engine_region": engine, "requests": count}
        for (client, engine), count in sorted(counted.items())
    ]


def first_tokens_over_time(region: RegionName, records: Iterable[RequestReport], window: Window) -> Figures:
    """Time to first token of one region's clients, bucketed by when the requests were sent."""
    bucket_ns = max(1, window[1] // _BUCKETS)
    buckets: dict[int, list[int]] = {}
    for each in records:
        if each.client_region == region and each.first_token_ns is not None:
            buckets.setdefault(each.sent_ns // bucket_ns, []).append(each.first_token_ns - each.sent_ns)
    return {
        "ttft_at_s": [(number + 0.5) * bucket_ns / _SECOND_NS for number in sorted(buckets)],
        "ttft_p90_ms": [(distribution(buckets[number]) or {})["p90"] for number in sorted(buckets)],
    }


def tokens_by(at_ns: int, *, first_token_ns: int | None, ended_ns: int, tokens: int) -> int:
    """Number of an answer's tokens that had arrived by `at_ns`, assuming that tokens arrive evenly after the first."""
    if ended_ns <= at_ns:
        return tokens
    if first_token_ns is None or first_token_ns > at_ns or not tokens:
        return 0
    return 1 + int((tokens - 1) * (at_ns - first_token_ns) / (ended_ns - first_token_ns))


def _tokens_within(record: RequestReport, window: Window) -> int:
    before, after = (
        tokens_by(at_ns, first_token_ns=record.first_token_ns, ended_ns=record.ended_ns, tokens=record.output_tokens)
        for at_ns in window
    )
    return after - before
