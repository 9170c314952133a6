"""Figures of a run, as in the report and in `results.json`; the unit comes last in each name.

It only counts; requests sent during the warm-up are left out, and no others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from gateway.core.vocabulary import RegionName, ServiceClass
from loadgen.figures import (
    Figures,
    Window,
    asked_in,
    distribution,
    figures_on,
    first_tokens_over_time,
    flows,
    hit_rate,
    share,
)
from loadgen.report import RequestReport, quantile
from loadgen.simulator.callers import FailedBy
from loadgen.simulator.faults import SimFault
from loadgen.simulator.origins import origins_of
from loadgen.simulator.scenario import Scenario
from loadgen.simulator.world import RegionSample, Story
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000


def figures_of(scenario: Scenario, story: Story) -> Figures:
    """Figures of one run."""
    window = scenario.warm_up, scenario.duration
    regions = {
        region: figures_on([each for each in story.records if each.client_region == region], window)
        | {"prefix_hit_rate": hit_rate([story.prefix_tokens[region]])}
        for region in story.samples
    }
    total = figures_on(story.records, window)
    return {
        "name": story.run.name,
        "system": str(story.run.system),
        "digest": story.digest,
        "seed": scenario.seed,
        "load_s": (scenario.duration - scenario.warm_up) / _SECOND_NS,
        "measured_s": [at_ns / _SECOND_NS for at_ns in window],
        "simulated_s": story.simulated_ns / _SECOND_NS,
        "core_events": story.events,
        "all_requests": len(story.records),
        "total": total
        | {"prefix_hit_rate": hit_rate(story.prefix_tokens.values())}
        | {"prefilled_tokens_per_request": _prefilled(story, total["requests"])}
        | {"replicas_needed": _replicas_needed(scenario, total, regions)}
        | _spread(story.samples, window),
        "regions": regions,
        "flows": flows(asked_in(story.records, window)),
        "placements": [
            {"from": origin, "to": target, "reason": reason, "attempts": count}
            for (origin, target, reason), count in sorted(story.counts.placements.items())
        ],
        "refusals": dict(sorted(story.counts.refusals.items())),
        "ends": story.outcomes,
        "series": {region: _series(region, story, window) for region in story.samples},
    } | (_sharing(story, window) | _control(story) | _scaling(story) | _money(story) | _broken(scenario, story))


def _broken(scenario: Scenario, story: Story) -> Figures:
    """Figures of broken answers, where the scenario continues them."""
    if not scenario.resumes:
        return {}
    broken = [each for each in story.records if each.breaks]
    pauses = [each.pause_ns for each in broken if each.pause_ns is not None]
    whole = sum(each.end is RequestEnd.COMPLETED for each in broken)
    return {
        "broken": {"answers": len(broken), "continued": len(pauses), "whole": whole, "pause_ms": distribution(pauses)}
    }


def _scaling(story: Story) -> Figures:
    return {} if story.scaling is None else {"scaling": story.scaling}


def _money(story: Story) -> Figures:
    return {} if story.money is None else {"money": story.money}


def _sharing(story: Story, window: Window) -> Figures:
    """Figures by tenant and by service class, where there are several of them or a first-token deadline was
    promised."""
    asked = asked_in(story.records, window)
    classes = story.run.as_config().classes
    tenants, named = {each.tenant for each in asked}, {each.service_class for each in asked}
    promised = any(classes.first_token_ns(each) is not None for each in ServiceClass)
    found: Figures = {}
    if len(tenants) > 1:
        found["tenants"] = {
            each: figures_on([one for one in asked if one.tenant == each], window) for each in sorted(tenants)
        }
    if promised or named - {ServiceClass.INTERACTIVE}:
        found["classes"] = {
            str(each): goodput_of([one for one in asked if one.service_class is each], classes.first_token_ns(each))
            for each in ServiceClass
            if each in named
        }
    return found


def goodput_of(records: Sequence[RequestReport], first_token_max_ns: int | None) -> Figures:
    """Figures of one class: requests with a complete answer, and those of them with the first token in time."""
    whole = [each for each in records if each.end is RequestEnd.COMPLETED]
    kept = [each for each in whole if is_in_time(each, first_token_max_ns)]
    refused = Counter(each.detail for each in records if each.end is RequestEnd.FAILED)
    return {
        "requests": len(records),
        "kept": len(kept),
        "late": len(whole) - len(kept),
        "goodput": share(len(kept), len(records)),
        "failures": dict(refused.most_common()),
        "ttft_ms": distribution(one.first_token_ns - one.sent_ns for one in whole if one.first_token_ns is not None),
    }


def is_in_time(record: RequestReport, first_token_max_ns: int | None) -> bool:
    first_ns = record.ended_ns if record.first_token_ns is None else record.first_token_ns
    return first_token_max_ns is None or first_ns - record.sent_ns <= first_token_max_ns


def _control(story: Story) -> Figures:
    """Figures of a run with a controller: timeline of each gateway failure, and the causes of all failures at
    clients."""
    if story.control is None:
        return {}
    failed = Counter(each.failed_by for each in story.records if each.end is RequestEnd.FAILED)
    tries = Counter(each.tries for each in story.records)
    return {
        "control": story.control
        | {
            "failed_by": {str(kind): failed[str(kind)] for kind in FailedBy},
            "tries": {str(count): requests for count, requests in sorted(tries.items())},
        }
    }


def document_of(scenario: Scenario, runs: Sequence[Figures]) -> Figures:
    """Content of `results.json`."""
    digests = "".join(run["digest"] for run in runs)
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "digest": runs[0]["digest"] if len(runs) == 1 else _joint_digest(digests),
        "regions": list(scenario.regions),
        "replicas": sum(len(owned) for owned in scenario.fleet().values()),
        "faults": [
            {"fault": _fault_in_words(fault), "from_s": from_ns / _SECOND_NS, "to_s": to_ns / _SECOND_NS}
            for fault in (section.as_fault() for section in scenario.faults)
            for from_ns, to_ns in fault.spans()
        ],
        "origins": origins_of(scenario),
        "runs": list(runs),
    }


def _fault_in_words(fault: SimFault) -> str:
    where = f"{fault.target} → {fault.other}" if fault.other else fault.target
    return f"{fault.kind} {where}" + (f", amount {fault.amount:g}" if fault.kind.needs_amount else "")


def _joint_digest(digests: str) -> str:
    return blake2b(digests.encode(), digest_size=16).hexdigest()


def _prefilled(story: Story, requests: int) -> float | None:
    """Mean prompt tokens that engines computed per request: those not cached, and those computed again after eviction,
    or at another replica."""
    computed = sum(each.queried - each.hit for each in story.prefix_tokens.values())
    return round(computed / requests, 1) if requests else None


def _spread(samples: dict[RegionName, list[RegionSample]], window: Window) -> Figures:
    """Imbalance of the engines' loads, and lengths of queues, at the sampled moments under load."""
    moments = [
        [sample for sample in at_once if window[0] <= sample.at_ns <= window[1]]
        for at_once in zip(*samples.values(), strict=True)
    ]
    loads = [[load for sample in at_once for load in sample.outstanding] for at_once in moments if at_once]
    queues = [sum(sample.queue for sample in at_once) for at_once in moments if at_once]
    ratios = [max(load) * len(load) / sum(load) for load in loads if any(load)]
    idlest = sum(min(load) for load in loads if load)
    return {
        "outstanding_mean": _mean([sum(load) / len(load) for load in loads if load]),
        "outstanding_max_to_mean": _mean(ratios),
        "outstanding_max_to_min": round(sum(max(load) for load in loads if load) / idlest, 3) if idlest else None,
        "outstanding_p90_minus_p10": _mean([quantile(load, 0.9) - quantile(load, 0.1) for load in loads if load]),
        "queue_mean": _mean(queues),
        "queue_max": max(queues, default=0),
    }


def _replicas_needed(scenario: Scenario, total: Figures, regions: Mapping[RegionName, Figures]) -> Figures | None:
    """Engines whose slots would hold the requests in flight at the busiest moment: of all regions together, and of each
    alone.

    It counts slots, not speed. None if there are no engines.
    """
    slots: Counter[RegionName] = Counter()
    engines: Counter[RegionName] = Counter()
    for owned in scenario.fleet().values():
        for spec, engine in owned:
            slots[spec.place.region] += engine.sequences_max
            engines[spec.place.region] += 1
    if not engines:
        return None
    mean = slots.total() / engines.total()
    alone = {region: slots[region] / engines[region] if engines[region] else mean for region in regions}
    return {
        "together": math.ceil(total["in_flight_max"] / mean),
        "apart": sum(math.ceil(each["in_flight_max"] / alone[region]) for region, each in regions.items()),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _series(region: RegionName, story: Story, window: Window) -> Figures:
    samples = story.samples[region]
    return {
        "at_s": [sample.at_ns / _SECOND_NS for sample in samples],
        "queue": [sample.queue for sample in samples],
        "outstanding_mean": [
            round(sum(s.outstanding) / len(s.outstanding), 2) if s.outstanding else 0 for s in samples
        ],
        "outstanding_min": [min(sample.outstanding, default=0) for sample in samples],
        "outstanding_max": [max(sample.outstanding, default=0) for sample in samples],
        "outstanding_p90_minus_p10": [
            quantile(s.outstanding, 0.9) - quantile(s.outstanding, 0.1) if s.outstanding else 0 for s in samples
        ],
    } | first_tokens_over_time(region, story.records, window)
