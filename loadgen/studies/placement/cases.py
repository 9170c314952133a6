"""Further cases of the placement evaluation: prompts of a hundred thousand tokens, tenants of different kinds, loss of
engines and regions, a cold start, larger fleets, other distances. Each is a scenario with one change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.studies.experiments import Changes
from loadgen.studies.placement.workloads import LARGE, REGIONS, PlacementWorkload, changed, few_large, with_clients

LOSS_S = 30
"""Duration of a loss in seconds."""
ROUND_TRIPS_MS = (1, 75, 150, 300)
"""Round trips between any two regions; 1 ms stands for none."""
FLEETS = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class PlacementCase:
    """One case, or one quantity at several values."""

    name: str
    title: str
    workloads: tuple[PlacementWorkload, ...]
    axis: str = ""
    values: tuple[float, ...] = ()
    note: str = ""


def cases(known: Mapping[str, PlacementWorkload]) -> list[PlacementCase]:
    """Cases whose trace files are present."""
    found = [*_fleets(known["conversations"]), _distances("one-prompt", known["one-prompt"])]
    found += _lost("conversations", known["conversations"])
    if "agentic" in known:
        agentic = with_clients(known["agentic"], 22)
        found += [_unscaled(known["agentic"]), _distances("agentic", agentic), *_lost("agentic", agentic)]
    found += [_large(name, known[name], users) for name, users in LARGE.items() if name in known]
    if "agentic" in known and "mooncake" in known:
        found.append(_tenants(known["agentic"], known["mooncake"]))
    return found


def _single(name: str, workload: PlacementWorkload, note: str = "") -> PlacementCase:
    return PlacementCase(name, workload.point.name, (workload,), note=note)


def _unscaled(agentic: PlacementWorkload) -> PlacementCase:
    changes: Changes = {
        "workloads.chat.trace.scale_tokens": 1.0,
        "workloads.chat.trace.pause_max": "300s",
        "duration": "600s",
        "warm_up": "150s",
    }
    return _single(
        "unscaled",
        changed(with_clients(agentic, 8), "unscaled, pauses to 300 s", changes),
        "Contexts of up to 100,000 tokens; four of them fill an engine.",
    )


def _tenants(agentic: PlacementWorkload, mooncake: PlacementWorkload) -> PlacementCase:
    """Case with four workloads at once, each of another tenant."""
    recorded = agentic.point.changes["workloads"], mooncake.point.changes["workloads"]
    kinds: dict[str, Any] = {
        "agents": dict(_chat(recorded[0])),
        "service": dict(_chat(recorded[1])),
        "talk": {"conversations": {}},
        "bursts": {"bursts": {"requests": 20, "document_words": 3000}},
    }
    shares = {"agents": 9, "service": 9, "talk": 20, "bursts": 1}
    clients = [
        {"region": region, "workload": kind, "tenant": kind, "clients": count}
        for region in REGIONS
        for kind, count in shares.items()
    ]
    return _single("tenants", changed(agentic, "four kinds of tenants", {"workloads": kinds, "clients": clients}))


def _chat(workloads: object) -> Mapping[str, Any]:
    assert isinstance(workloads, Mapping), "a recorded point says what its users ask"
    return dict(workloads["chat"])


def _lost(name: str, workload: PlacementWorkload) -> list[PlacementCase]:
    """Cases of lost engines, which crash and return with an empty cache."""
    span: Changes = {"duration": "120s", "warm_up": "30s"}
    engines = [f"{REGIONS[-1]}/{number}" for number in range(workload.replicas_in(REGIONS[-1]))]
    cold: Changes = {"duration": "30s", "warm_up": 0}
    return [
        _single(
            f"replica lost, {name}", changed(workload, "a replica lost", {**span, "faults": _crashes(engines[:1])})
        ),
        _single(
            f"region lost, {name}", changed(workload, "a region's engines lost", {**span, "faults": _crashes(engines)})
        ),
        _single(f"cold start, {name}", changed(workload, "the first half minute", cold)),
    ]


def _crashes(engines: Sequence[str]) -> list[dict[str, object]]:
    return [{"kind": "replica_crash", "target": each, "at": "45s", "lasts": f"{LOSS_S}s"} for each in engines]


def _fleets(workload: PlacementWorkload) -> list[PlacementCase]:
    """Case of larger fleets, with users in proportion to the replicas, equal in all regions."""
    points = tuple(_fleet(workload, factor) for factor in FLEETS)
    return [PlacementCase("fleets", "larger fleets", points, "times 2/2/2", tuple(map(float, FLEETS)))]


def _fleet(workload: PlacementWorkload, factor: int) -> PlacementWorkload:
    replicas: Changes = {f"regions.{region}.replicas": 2 * factor for region in REGIONS}
    larger = with_clients(workload, 30 * factor)
    return changed(larger, f"{2 * factor} replicas a region", {**replicas, "duration": "60s", "warm_up": "20s"})


def _large(name: str, workload: PlacementWorkload, users: Mapping[int, int]) -> PlacementCase:
    points = tuple(few_large(workload, slots, count) for slots, count in users.items())
    title = f"{workload.point.name}: one large replica a region"
    return PlacementCase(f"large replicas, {name}", title, points, "slots", tuple(map(float, users)))


def _distances(name: str, workload: PlacementWorkload) -> PlacementCase:
    points = tuple(
        changed(workload, f"{ms} ms between regions", {"round_trips": _round_trips(ms)}) for ms in ROUND_TRIPS_MS
    )
    title = f"{workload.point.name}: distances"
    return PlacementCase(f"distances, {name}", title, points, "ms between regions", tuple(map(float, ROUND_TRIPS_MS)))


def _round_trips(ms: int) -> list[list[str]]:
    first, second, third = REGIONS
    return [[one, other, f"{ms}ms"] for one, other in ((first, second), (first, third), (second, third))]
