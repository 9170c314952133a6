"""From a run's story to figures: what the report shows and `results.json` holds, the unit last in each name.

It only counts; what was asked during the warm-up is left out, and nothing else is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from gateway.core.vocabulary import RegionName
from loadgen.report import PrefixTokens, RequestEnd, RequestRecord
from loadgen.simulator.asks import tokens_by
from loadgen.simulator.scenario import Scenario
from loadgen.simulator.world import RegionSample, Story

_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000
_QUANTILES = {"p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p90": 0.90, "p99": 0.99}
_BUCKETS = 24
"""Stretches of time for which the first tokens' delay is shown."""

Figures = dict[str, Any]
"""JSON-able."""


def figures_of(scenario: Scenario, story: Story) -> Figures:
    """One run in numbers."""
    window = scenario.warm_up, scenario.duration
    regions = {
        region: _statistics([each for each in story.records if each.client_region == region], window)
        | {"prefix_hit_rate": _hit_rate([story.prefix_tokens[region]])}
        for region in story.samples
    }
    return {
        "name": story.run.name,
        "system": str(story.run.system),
        "digest": story.digest,
        "seed": scenario.seed,
        "load_s": (scenario.duration - scenario.warm_up) / _SECOND_NS,
        "simulated_s": story.simulated_ns / _SECOND_NS,
        "core_events": story.events,
        "all_requests": len(story.records),
        "total": _statistics(story.records, window)
        | {"prefix_hit_rate": _hit_rate(story.prefix_tokens.values())}
        | _spread(story.samples, window),
        "regions": regions,
        "flows": _flows(_asked_in(story.records, window)),
        "placements": [
            {"from": origin, "to": target, "reason": reason, "attempts": count}
            for (origin, target, reason), count in sorted(story.counts.placements.items())
        ],
        "refusals": dict(sorted(story.counts.refusals.items())),
        "ends": story.outcomes,
        "series": {region: _series(region, story, window) for region in story.samples},
    }


def document_of(scenario: Scenario, runs: Sequence[Figures]) -> Figures:
    """What `results.json` holds."""
    digests = "".join(run["digest"] for run in runs)
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "digest": runs[0]["digest"] if len(runs) == 1 else _joint_digest(digests),
        "regions": list(scenario.regions),
        "replicas": sum(len(owned) for owned in scenario.fleet().values()),
        "faults": [
            {"fault": str(fault), "from_s": from_ns / _SECOND_NS, "to_s": to_ns / _SECOND_NS}
            for fault in (section.as_fault() for section in scenario.faults)
            for from_ns, to_ns in fault.spans()
        ],
        "runs": list(runs),
    }


def distribution(values_ns: Iterable[int]) -> dict[str, float] | None:
    """Nearest-rank percentiles and the mean, in milliseconds; None without values."""
    ordered = sorted(values_ns)
    if not ordered:
        return None
    ranks = {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in _QUANTILES.items()}
    in_ms = {name: round(value_ns / _MILLISECOND_NS, 3) for name, value_ns in ranks.items()}
    return in_ms | {"mean": round(sum(ordered) / len(ordered) / _MILLISECOND_NS, 3)}


def _joint_digest(digests: str) -> str:
    return blake2b(digests.encode(), digest_size=16).hexdigest()


def _asked_in(records: Iterable[RequestRecord], window: tuple[int, int]) -> list[RequestRecord]:
    return [each for each in records if each.sent_ns >= window[0]]


def _statistics(records: Sequence[RequestRecord], window: tuple[int, int]) -> Figures:
    asked = _asked_in(records, window)
    completed = [each for each in asked if each.end is RequestEnd.COMPLETED]
    answered = [each for each in asked if each.served_by is not None]
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
        "tpot_ms": distribution(_time_per_token_ns(each) for each in completed if each.output_tokens > 1),
        "forwarded_share": _share(sum(each.served_by != each.client_region for each in answered), len(answered)),
        "cached_share": _share(
            sum(each.cached_tokens or 0 for each in answered), sum(each.prompt_tokens or 0 for each in answered)
        ),
        "failures": dict(Counter(each.detail for each in asked if each.end is RequestEnd.FAILED).most_common()),
    }


def _tokens_within(record: RequestRecord, window: tuple[int, int]) -> int:
    before, after = (
        tokens_by(at_ns, first_token_ns=record.first_token_ns, ended_ns=record.ended_ns, tokens=record.output_tokens)
        for at_ns in window
    )
    return after - before


def _time_per_token_ns(record: RequestRecord) -> int:
    assert record.first_token_ns is not None
    return (record.ended_ns - record.first_token_ns) // (record.output_tokens - 1)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _hit_rate(tokens: Iterable[PrefixTokens]) -> float | None:
    counted = tuple(tokens)
    return _share(sum(each.hit for each in counted), sum(each.queried for each in counted))


def _spread(samples: dict[RegionName, list[RegionSample]], window: tuple[int, int]) -> Figures:
    """How unequally engines were loaded, and how long queues were, at the sampled moments under load."""
    moments = [
        [sample for sample in at_once if window[0] <= sample.at_ns <= window[1]]
        for at_once in zip(*samples.values(), strict=True)
    ]
    loads = [[load for sample in at_once for load in sample.outstanding] for at_once in moments if at_once]
    queues = [sum(sample.queue for sample in at_once) for at_once in moments if at_once]
    ratios = [max(load) * len(load) / sum(load) for load in loads if any(load)]
    return {
        "outstanding_mean": _mean([sum(load) / len(load) for load in loads if load]),
        "outstanding_max_to_mean": _mean(ratios),
        "queue_mean": _mean(queues),
        "queue_max": max(queues, default=0),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _flows(records: Iterable[RequestRecord]) -> list[Figures]:
    counted = Counter((each.client_region, each.served_by) for each in records if each.served_by is not None)
    return [
        {"client_region": client, "engine_region": engine, "requests": count}
        for (client, engine), count in sorted(counted.items())
    ]


def _series(region: RegionName, story: Story, window: tuple[int, int]) -> Figures:
    samples = story.samples[region]
    bucket_ns = max(1, window[1] // _BUCKETS)
    buckets: dict[int, list[int]] = {}
    for each in story.records:
        if each.client_region == region and each.first_token_ns is not None:
            buckets.setdefault(each.sent_ns // bucket_ns, []).append(each.first_token_ns - each.sent_ns)
    return {
        "at_s": [sample.at_ns / _SECOND_NS for sample in samples],
        "queue": [sample.queue for sample in samples],
        "outstanding_mean": [
            round(sum(s.outstanding) / len(s.outstanding), 2) if s.outstanding else 0 for s in samples
        ],
        "outstanding_min": [min(sample.outstanding, default=0) for sample in samples],
        "outstanding_max": [max(sample.outstanding, default=0) for sample in samples],
        "ttft_at_s": [(number + 0.5) * bucket_ns / _SECOND_NS for number in sorted(buckets)],
        "ttft_p90_ms": [(distribution(buckets[number]) or {})["p90"] for number in sorted(buckets)],
    }
