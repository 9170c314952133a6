"""Compares replicas over a day in three regions: not scaled, scaled by each region alone, and scaled by all together.

It plays and counts, with the gateways' own scaler and an autoscaler that follows it. The expected result was written
down here before any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadgen.figures import Figures, asked_in
from loadgen.report import RequestReport, percentiles
from loadgen.simulator.results import figures_of
from loadgen.simulator.scaling_sections import ScalingMode
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import World
from loadgen.studies.rendering import render
from loadgen.studies.sharing.worlds import StudySize
from loadgen.traces.rates import Points
from loadgen.vocabulary import RequestEnd

REGIONS: Final = {"us-east-1": 0.0, "eu-west-1": 6.0, "ap-northeast-1": 14.0}
"""Hours that each region's clock is ahead."""
ROUND_TRIPS: Final = (
    ("us-east-1", "eu-west-1", "70ms"),
    ("us-east-1", "ap-northeast-1", "149ms"),
    ("eu-west-1", "ap-northeast-1", "201ms"),
)
CODE: Final = (805, 850, 778, 742, 635, 518, 411, 265, 213, 213, 218, 250, 369, 473, 612, 728, 781, 795, 924, 948, 1076)
CODE_EVENING: Final = (1122, 1043, 1020)
CHAT: Final = (2913, 3043, 3135, 2553, 2565, 2723, 3151, 3526, 3443, 3401, 3165, 3464, 3934, 4178, 4481, 4177, 3884)
CHAT_EVENING: Final = (3636, 3834, 3538, 3183, 2835, 2442, 2306)
CURVES: Final = {"code": (*CODE, *CODE_EVENING), "chat": (*CHAT, *CHAT_EVENING)}
"""Requests per minute by the hour of one Tuesday of Azure's LLM inference trace of 2024, read off Microsoft's published
plots (CC-BY-4.0). All regions have this curve, shifted by their clocks: it is not the real curve of any of them."""
ASIDE: Final = "chat"
"""Held-out curve, played once: settings were looked at with the other one alone."""
EXPECTED: Final = """\
Expected before the first run: beside regions that scale for themselves, the mesh needs 10 to 15 % fewer replica-hours
on the code curve, whose peaks come at different times and fall to a fifth at night, and 5 to 10 % on the chat curve,
which is flat; it starts and stops a third less often. Its first tokens come later at the 99th percentile, by up to a
quarter, since more of them are a round trip away. All replicas all day cost half as much again as regions that
scale."""
SLO_S: Final = 2.0
"""Objective of the first token in seconds."""
_SECOND_NS = 1_000_000_000
_DAY_S, _QUICK_S = 3_600, 30
_PEAK_PER_S: Final = 1.2
"""Conversations that begin in one region at its peak."""
_REPLICAS: Final = 5
_START_S: Final = 30


@dataclass(frozen=True, slots=True)
class ScalingChange:
    """Change in a run that was added after the look."""

    slots: int = 8
    """Requests that one replica runs at once; of smaller replicas there may be more."""
    headroom: float = 1.0


AS_IT_IS: Final = ScalingChange()
AFTERWARDS: Final = (
    ("chat", "more headroom (`headroom: 2`)", ScalingChange(headroom=2.0)),
    ("code", "replicas half as large, and twice as many", ScalingChange(slots=4)),
)
"""Questions raised by the first look; no result was expected beforehand."""


def measure(size: StudySize) -> Figures:
    """Results for JSON. There is one seed, however many there are of other parts: a day holds some fifteen thousand
    requests."""
    is_quick = size.is_quick
    return {
        "expected": EXPECTED,
        "is_quick": is_quick,
        "day_s": _QUICK_S if is_quick else _DAY_S,
        "curves": {
            curve: {str(mode): [played(curve, mode, 1, is_quick=is_quick)] for mode in ScalingMode} for curve in CURVES
        },
        "afterwards": [
            {
                "curve": curve,
                "what": what,
                "modes": {
                    str(mode): [played(curve, mode, 1, is_quick=is_quick, change=change)]
                    for mode in (ScalingMode.REGION, ScalingMode.MESH)
                },
            }
            for curve, what, change in AFTERWARDS
        ],
    }


def scenario(
    curve: str, mode: ScalingMode, seed: int, *, is_quick: bool = False, change: ScalingChange = AS_IT_IS
) -> Scenario:
    day_s = _QUICK_S if is_quick else _DAY_S
    document: dict[str, Any] = {
        "name": f"scaling-{curve}",
        "seed": seed,
        "duration": f"{day_s}s",
        "sample": "10s",
        "slots": change.slots,
        "round_trips": [list(each) for each in ROUND_TRIPS],
        "regions": {
            name: {"jurisdiction": name[:2].upper(), "replicas": _REPLICAS * 8 // change.slots} for name in REGIONS
        },
        "workloads": {"chat": {"conversations": {"turns": {"median": 1.7, "sigma": 0.6, "minimum": 1, "maximum": 8}}}},
        "clients": [_clients(name, curve, day_s) for name in REGIONS],
        "scaling": {
            "concurrency": change.slots,
            "headroom": change.headroom,
            "begin": 16 // change.slots,
            "start_delay": f"{_START_S}s",
            "interval": "10s",
            "window": "30s",
            "up_after": "10s",
            "down_after": "60s",
            "down_every": "15s",
        },
        "runs": [{"name": str(mode), "scaling": str(mode)}],
    }
    return parse_scenario(document, Path("scaling.yaml"))


def _clients(region: str, curve: str, day_s: int) -> dict[str, object]:
    recorded = {
        "file": [list(point) for point in _points(curve)],
        "day": f"{day_s}s",
        "peak": _PEAK_PER_S,
        "shift_hours": REGIONS[region],
    }
    return {"region": region, "workload": "chat", "arrivals": {"recorded": recorded}}


def _points(curve: str) -> Points:
    return tuple((float(hour), float(rate)) for hour, rate in enumerate(CURVES[curve]))


def played(
    curve: str, mode: ScalingMode, seed: int, *, is_quick: bool, change: ScalingChange = AS_IT_IS
) -> dict[str, object]:
    world = scenario(curve, mode, seed, is_quick=is_quick, change=change)
    story = World(world, world.runs[0]).play()
    figures = figures_of(world, story)
    scaling: Figures = figures.get("scaling") or _all_day(world)
    asked = asked_in(story.records, (0, world.duration))
    total: Figures = figures["total"]
    return {
        "seed": seed,
        "digest": figures["digest"],
        "requests": total["requests"],
        "failed": total["failed"],
        "replica_hours": round(scaling["replica_hours"] * 24 * 3600 * _SECOND_NS / world.duration, 2),
        "actions": scaling["actions"],
        "ttft_p99_s": _p99_s(asked),
        "within_slo_share": round(sum(_is_in_time(each) for each in asked) / max(1, len(asked)), 5),
        "forwarded_share": total["forwarded_share"],
        "regions": scaling["regions"],
    }


def _all_day(played: Scenario) -> Figures:
    hours = played.duration / _SECOND_NS / 3600 * sum(each.replicas for each in played.regions.values())
    return {"replica_hours": round(hours, 3), "actions": 0, "regions": {}}


def _is_in_time(record: RequestReport) -> bool:
    """True if the first token came within the objective, and the request completed."""
    first_ns = record.first_token_ns
    return (
        record.end is RequestEnd.COMPLETED and first_ns is not None and first_ns - record.sent_ns <= SLO_S * _SECOND_NS
    )


def _p99_s(asked: list[RequestReport]) -> float:
    found = percentiles(each.first_token_ns - each.sent_ns for each in asked if each.first_token_ns is not None)
    return 0.0 if found is None else round(found.p99_ns / _SECOND_NS, 3)


_NAMES: Final = {"none": "not at all", "region": "each region for itself", "mesh": "the mesh together"}


def section(measured: Figures) -> str:
    return render("sharing/scaling.j2", measured=measured, replicas=_REPLICAS, start_s=_START_S, slo_s=SLO_S,
                  aside=ASIDE, names=_NAMES, mean=_mean, in_words=_in_words)  # fmt: skip


def _in_words(modes: Mapping[str, list[Mapping[str, Any]]]) -> str:
    """Sentence with the figures alone; it does not judge them."""
    region, mesh = (_mean(modes[name], "replica_hours") for name in ("region", "mesh"))
    peaks = 24.0 * sum(_peaks(modes["region"]))
    first = tuple(_mean(modes[name], "ttft_p99_s") for name in ("region", "mesh"))
    actions = tuple(_mean(modes[name], "actions") for name in ("region", "mesh"))
    return (
        f"The mesh: {_changed(region, mesh)} replica-hours beside regions on their own, and {_changed(peaks, mesh)} "
        f"beside what each region wanted at its peak, all day ({peaks:.0f}, reckoned); {_changed(*actions)} starts and "
        f"stops; TTFT p99 {_changed(*first)}."
    )


def _peaks(runs: list[Mapping[str, Any]]) -> Iterator[int]:
    """Maximum number of replicas that each region wanted."""
    for region in runs[0]["regions"].values():
        yield max(count for _, count in region["wanted"])


def _changed(before: float, after: float) -> str:
    return "as many" if not before else f"{after / before - 1:+.1%}"


def _mean(runs: list[Mapping[str, Any]], name: str) -> float:
    return float(sum(run[name] or 0 for run in runs)) / len(runs)
