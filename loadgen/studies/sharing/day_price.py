"""Compares a day in three regions by `cost` and by `price`: money, carbon, and requests with a first token in time.

It plays and counts, with invented prices. The expected result was written down here before any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.core.vocabulary import ServiceClass
from loadgen.figures import Figures, asked_in, share
from loadgen.report import RequestReport
from loadgen.simulator.results import figures_of
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import World
from loadgen.studies.data import read_data
from loadgen.studies.rendering import render
from loadgen.studies.sharing.worlds import StudySize

EXPECTED: Final = """\
Expected before the first run: the region that is paid by use costs a third to a half less, since what the two others
have paid for is filled first, and all together 8 to 15 % less; carbon hardly moves (5 % either way), as the same work
is done by engines of the same kind, and idle ones draw a quarter. Of interactive requests 1 to 5 of a hundred more are
late, since estimates are worked closer to what was promised; batch keeps its minute."""
ASIDE: Final = "trees"
"""Held-out workload, played once: settings were looked at with the other one alone."""
LOOKED_AT: Final = """\
The load was set once, after a look at a third of it, where the two reserved regions did all of the work under `price`;
nothing else was changed after a look. Both keep what was promised with room to spare, and `price` lives off that room:
where there is none it decides as `cost` does."""
SLO_S: Final = {ServiceClass.INTERACTIVE: 4.0, ServiceClass.BATCH: 60.0}
"""Objective of the first token in seconds, by class."""
POLICIES: Final = ("cost", "price")
_SECOND_NS = 1_000_000_000
_DAY_S, _QUICK_S = 240, 40
_REPLICAS: Final = 3
_REGIONS: Final = {"us-east-1": -5.0, "eu-west-1": 0.0, "ap-northeast-1": 9.0}
"""Hours that each region's clock is ahead."""
_ROUND_TRIPS: Final = (
    ("us-east-1", "eu-west-1", "70ms"),
    ("us-east-1", "ap-northeast-1", "149ms"),
    ("eu-west-1", "ap-northeast-1", "201ms"),
)
PRICES: Final = read_data("sharing/prices.yaml", dict[str, Any])
WORKLOADS: Final[dict[str, dict[str, Any]]] = {
    "chat": {"conversations": {"turns": {"median": 1.7, "sigma": 0.6, "minimum": 1, "maximum": 8}}},
    "trees": {"mixture": [{"workload": "thoughts", "weight": 1}, {"workload": "talk", "weight": 3}]},
}
_PARTS: Final[dict[str, dict[str, Any]]] = {
    "thoughts": {"tree": {}},
    "talk": {"conversations": {}},
    "nightly": {"conversations": {"turns": {"median": 1, "sigma": 0.1, "minimum": 1, "maximum": 1}}},
}
_PEAK_PER_S: Final = {"chat": 4.5, "trees": 1.7}
"""Programs that begin in one region at its peak."""


def measure(size: StudySize) -> Figures:
    is_quick = size.is_quick
    return {
        "expected": EXPECTED,
        "is_quick": is_quick,
        "day_s": _QUICK_S if is_quick else _DAY_S,
        "workloads": {
            name: {
                policy: [played(name, policy, seed, is_quick=is_quick) for seed in size.seeds] for policy in POLICIES
            }
            for name in WORKLOADS
        },
    }


def scenario(workload: str, policy: str, seed: int, *, is_quick: bool = False) -> Scenario:
    day_s = _QUICK_S if is_quick else _DAY_S
    placement = {"policy": policy} | ({"price_first_token": "4s"} if policy == "price" else {})
    document: dict[str, Any] = {
        "name": f"day-price-{workload}",
        "seed": seed,
        "duration": f"{day_s}s",
        "slots": 24,
        "round_trips": [list(each) for each in _ROUND_TRIPS],
        "regions": {name: {"jurisdiction": name[:2].upper(), "replicas": _REPLICAS} for name in _REGIONS},
        "workloads": {**_PARTS, workload: WORKLOADS[workload]},
        "clients": [each for region in _REGIONS for each in _clients(region, workload, day_s)],
        "prices": {"file": PRICES},
        "runs": [{"name": policy, "placement": placement, "classes": {"batch": {"first_token": "60s"}}}],
    }
    return parse_scenario(document, Path("day_price.yaml"))


def _clients(region: str, workload: str, day_s: int) -> Iterator[dict[str, object]]:
    """Interactive clients by day, and batch jobs all the time."""
    peak = _PEAK_PER_S[workload]
    day = {"peak": peak, "trough": peak / 10, "day": f"{day_s}s", "shift_hours": _REGIONS[region]}
    yield {"region": region, "tenant": "people", "workload": workload, "arrivals": {"diurnal": day}}
    batch = {"rate": peak / 4}
    yield {
        "region": region, "tenant": "jobs", "workload": "nightly", "arrivals": batch, "service_class": "batch",
    }  # fmt: skip


def played(workload: str, policy: str, seed: int, *, is_quick: bool = False) -> Figures:
    """Figures of one day."""
    day = scenario(workload, policy, seed, is_quick=is_quick)
    story = World(day, day.runs[0]).play()
    figures = figures_of(day, story)
    asked = asked_in(story.records, (day.warm_up, day.duration))
    total = figures["total"]
    return {
        "seed": seed,
        "digest": figures["digest"],
        "money": figures["money"],
        "requests": total["requests"],
        "failed": total["failed"],
        "ttft_ms": total["ttft_ms"],
        "forwarded_share": total["forwarded_share"],
        "prefix_hit_rate": total["prefix_hit_rate"],
        "in_time": {str(each): _in_time(asked, each) for each in SLO_S},
    }


def _in_time(asked: Sequence[RequestReport], service_class: ServiceClass) -> float | None:
    """Share of the class's requests whose first token met its objective; a request without a first token did not."""
    slo_ns = SLO_S[service_class] * _SECOND_NS
    own = [each for each in asked if each.service_class is service_class]
    good = (each.first_token_ns is not None and each.first_token_ns - each.sent_ns <= slo_ns for each in own)
    return share(sum(good), len(own))


def section(measured: Figures) -> str:
    return render(
        "sharing/day_price.j2", measured=measured, replicas=_REPLICAS, aside=ASIDE, looked_at=LOOKED_AT, mean=_mean,
        change=_change, slo_s={str(each): objective_s for each, objective_s in SLO_S.items()},
    )  # fmt: skip


def _mean(runs: Sequence[Mapping[str, Any]], *way: str) -> float:
    def at(run: Any) -> float:
        for key in way:
            run = run[key]
        return float(run or 0.0)

    return sum(map(at, runs)) / len(runs)


def _change(policies: Mapping[str, Sequence[Mapping[str, Any]]], *way: str) -> float:
    """Change from `cost` to `price`, as a share."""
    base = _mean(policies["cost"], *way)
    return _mean(policies["price"], *way) / base - 1 if base else 0.0
