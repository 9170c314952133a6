"""Measures how many requests per second the simulator plays, by number of replicas, in regions of sixteen with their
own users.

Load grows with the fleet, so a falling rate shows a cost that grows faster than the fleet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import World

_REPLICAS_A_REGION = 16
_CLIENTS_A_REPLICA = 14
_LOAD_S = {12: 120, 128: 30, 1024: 8}
_LONE_REGIONS = 3


def run() -> Mapping[str, object]:
    """One run each, with slots for fewer requests than there are users, so that regions overflow."""
    figures: dict[str, object] = {}
    rates: dict[int, float] = {}
    for replicas, load_s in _LOAD_S.items():
        scenario = _scenario(replicas, load_s)
        world = World(scenario, scenario.runs[0])
        started = time.perf_counter()  # noqa: TID251 - a bench
        story = world.play()
        wall_s = time.perf_counter() - started  # noqa: TID251
        rates[replicas] = len(story.records) / wall_s
        figures[f"requests_per_s_at_{replicas}_replicas"] = round(rates[replicas])
        figures[f"simulated_s_per_s_at_{replicas}_replicas"] = round(story.simulated_ns / 1e9 / wall_s, 2)
        figures[f"forwards_at_{replicas}_replicas"] = story.counts.attempts["peer"]
    return figures | {"ratio_1024_to_12_replicas": round(rates[1024] / rates[12], 2)}


def _scenario(replicas: int, load_s: int) -> Scenario:
    regions = max(_LONE_REGIONS, replicas // _REPLICAS_A_REGION)
    names = [f"region-{number}" for number in range(regions)]
    document: dict[str, Any] = {
        "name": f"{replicas}-replicas",
        "duration": f"{load_s}s",
        "slots": 12,
        "heartbeat_batch": "10ms",
        "round_trips": [[one, other, "90ms"] for one, other in combinations(names, 2)],
        "regions": {name: {"jurisdiction": "US", "replicas": replicas // regions} for name in names},
        "workloads": {"chat": {"conversations": {}}},
        "clients": [
            {"region": name, "workload": "chat", "clients": _clients(number, replicas // regions)}
            for number, name in enumerate(names)
        ],
    }
    return parse_scenario(document, Path("bench.yaml"))


def _clients(number: int, replicas: int) -> int:
    """Number of users: one region in three has far more than its share."""
    return replicas * _CLIENTS_A_REPLICA * (2 if number % 3 == 0 else 1) // (1 if number % 3 == 0 else 2)
