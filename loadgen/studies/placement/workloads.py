"""The workloads of the evaluation by short names: those of SkyWalker's page, each at any load.

It names scenarios and changes of them; it plays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.studies.experiments import Changes, Point, ScenarioCell
from loadgen.studies.skywalker import plan as skywalker

REGIONS = skywalker.REGIONS
_BEYOND = (
    "arena",
    "arena-8",
    "wildchat",
    "wildchat-8",
    "tot",
    "tot-8",
    "mixed",
    "mixed-8",
    "mooncake",
    "agentic",
    "agentic-long",
)
_RECORDED = ("mooncake", "agentic", "agentic-long")
LARGE: Mapping[str, Mapping[int, int]] = {
    "agentic": {64: 32, 128: 48, 256: 64},
    "conversations": {64: 128, 128: 256, 256: 512},
}
"""Users on fleets of one large replica a region, by its slots: agents fill its cache, and conversations its slots."""
_UNSEEN = ("conversations", "one-prompt", "bursts")
H100 = "llama-3.1-8b-h100"
_L4 = "llama-3.1-8b-l4"

_REASONING = {
    "applications": 1,
    "system_prompt_words": 20,
    "profile_words": 1,
    "turns": {"median": 1, "sigma": 0.01, "minimum": 1, "maximum": 1},
    "question_words": {"median": 140, "sigma": 1.8, "minimum": 8, "maximum": 15_000},
    "output_tokens": {"median": 792, "sigma": 1.14, "minimum": 16, "maximum": 32_768},
    "think_s": {"median": 0.05, "sigma": 0.5, "minimum": 0.01, "maximum": 0.5},
}
"""Lengths as ServeGen publishes them of a reasoning service (arXiv 2505.09999): input 208 tokens in the median and
2,092 at 90 %, output 792 and 3,432. Only the first words are shared."""


@dataclass(frozen=True, slots=True)
class PlacementWorkload:
    """A point of an experiment, with its engines and seeds."""

    point: Point
    preset: str = _L4
    """Preset of the engines."""
    seeds_from: int = 1

    def clients(self) -> list[dict[str, Any]]:
        """Client groups of its scenario."""
        return list(self._document()["clients"])

    def replicas_in(self, region: str) -> int:
        return int(self._document()["regions"][region]["replicas"])

    def _document(self) -> dict[str, Any]:
        return ScenarioCell("", self.point, {}, 1).document()


def find_traces(folder: Path | None) -> skywalker.Traces:
    return skywalker.find_traces(folder)


def workloads(traces: skywalker.Traces) -> dict[str, PlacementWorkload]:
    """Workloads of *Beyond the paper* and of *What nothing was fitted to*, and one of long answers. Recorded ones are
    missing where their files are."""
    found = {point.name: point for point in skywalker.workloads(traces)}
    names = [name for name in _BEYOND if name not in _RECORDED or _has(traces, name)]
    assert len(names) == len(found), "every workload of that page has a short name"
    named = {
        name: PlacementWorkload(point, H100 if name in _RECORDED else _L4)
        for name, point in zip(names, found.values(), strict=True)
    }
    named["skewed"] = PlacementWorkload(Point(skywalker.SKEWED, "paper_skewed.yaml", skywalker.spread_out(9)))
    unseen_from = skywalker.UNSEEN_SEEDS[0]
    for name, point in zip(_UNSEEN, skywalker.UNSEEN, strict=True):
        named[name] = PlacementWorkload(point, seeds_from=unseen_from)
    named["reasoning"] = PlacementWorkload(_reasoning(), H100)
    named |= {
        f"{name}-large": few_large(named[name], 128, users[128]) for name, users in LARGE.items() if name in named
    }
    return named


def _has(traces: skywalker.Traces, name: str) -> bool:
    return (traces.mooncake if name == "mooncake" else traces.sessions) is not None


def few_large(workload: PlacementWorkload, slots: int, users: int) -> PlacementWorkload:
    """Fleet of one replica with `slots` slots in each region, and users 30 : 1 : 1, so that nearly all are in one
    region."""
    who = workload.clients()[0]["workload"]
    quiet = round(users / 32)
    counts = (users - 2 * quiet, quiet, quiet)
    changes: Changes = {
        "preset": H100,
        "duration": "120s",
        "warm_up": "40s",
        "clients": [
            {"region": region, "workload": who, "clients": count} for region, count in zip(REGIONS, counts, strict=True)
        ],
        **{f"regions.{region}.replicas": 1 for region in REGIONS},
        **{f"regions.{region}.slots": slots for region in REGIONS},
    }
    return replace(
        changed(workload, f"one replica of {slots} slots a region, {users} users 30 : 1 : 1", changes), preset=H100
    )


def _reasoning() -> Point:
    changes: Changes = {
        "preset": H100,
        "duration": "120s",
        "warm_up": "30s",
        "workloads": {"chat": {"conversations": _REASONING}},
        "clients": _clients(40),
        **{f"regions.{region}.replicas": 2 for region in REGIONS},
    }
    return Point("ServeGen-like reasoning, 2/2/2", "paper_conversations.yaml", changes)


# Other loads


def with_clients(workload: PlacementWorkload, clients: int) -> PlacementWorkload:
    """Closed loop with this number of users in each region."""
    asking = [{**section, "clients": clients} for section in workload.clients()]
    return changed(workload, f"{clients} clients a region", {"clients": asking})


def at_rate(workload: PlacementWorkload, rate: float) -> PlacementWorkload:
    """Open loop: programs begin at this rate in each region, however slowly answers come."""
    asking = [{**_who(section), "arrivals": {"rate": rate}} for section in workload.clients()]
    return changed(workload, f"{rate:g} programs/s a region", {"clients": asking})


def as_recorded(workload: PlacementWorkload, speed: float) -> PlacementWorkload:
    """Open loop: requests arrive at their recorded times, `speed` times as fast; each region has its share of the
    sessions."""
    asking = [_who(section) for section in workload.clients()]
    changes = {"clients": asking, f"workloads.{asking[0]['workload']}.trace.speed": speed}
    return changed(workload, f"recorded arrivals × {speed:g}", changes)


def changed(workload: PlacementWorkload, what: str, changes: Changes) -> PlacementWorkload:
    """Workload with further changes; `what` is added to its name."""
    point = workload.point
    return replace(workload, point=Point(f"{point.name}; {what}", point.scenario, {**point.changes, **changes}))


def _who(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: section[key] for key in ("region", "workload")}


def _clients(count: int) -> list[dict[str, Any]]:
    return [{"region": region, "workload": "chat", "clients": count} for region in REGIONS]
