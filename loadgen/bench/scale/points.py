"""Defines the points at which the simulator's cost is measured: growing numbers of replicas and regions, growing
queues.

Every replica is about equally busy in each of them, so that only the size of the fleet changes the work; in the largest
fleet most replicas have little to do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import dist
from pathlib import Path
from typing import Any

from loadgen.simulator.scenario import Scenario, parse_scenario

SLOTS = 12
"""Requests that one engine runs at once."""
_USERS_A_REPLICA = (16, 5, 5)
"""Users per replica, by region in turn: one region in three has more than its replicas take at once, so it
overflows."""
_FEW_USERS_A_REPLICA = (16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
"""Users per replica of the largest fleet: one region in ten overflows; the others have little to do."""
_ROUND_TRIP_MAX_MS = 220
_QUEUE_REPLICAS = 16
ANSWERS = {"median": 200, "sigma": 0.9, "minimum": 8, "maximum": 1500}
"""Tokens of an answer: 300 in the mean, between what LMSYS-Chat-1M (215) and WildChat (441) report."""
LONG_ANSWERS = {"median": 400, "sigma": 0.9, "minimum": 16, "maximum": 3000}
"""Tokens of a long answer: 600 in the mean, so that as many slots are busy with half the requests."""
_BATCH = "20ms"
_PUBLISH_INTERVAL = "100ms"
"""Minimum interval between two heartbeats of a gateway."""
_COARSE_INTERVAL = "250ms"
"""Heartbeat batch and interval of fleets in which a hundred regions exchange heartbeats."""


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """One run: regions, replicas per region, simulated time, and optionally a queue that no other region may take
    from."""

    kind: str
    regions: int
    replicas_a_region: int
    simulated_s: int
    queue: int = 0

    @property
    def replicas(self) -> int:
        return self.regions * self.replicas_a_region

    @property
    def name(self) -> str:
        fleet = f"{self.regions} x {self.replicas_a_region:,}"
        return f"{fleet}, {self.queue:,} waiting" if self.queue else fleet

    @property
    def is_coarse(self) -> bool:
        """True for fleets so large that answers are long, and heartbeats fewer and in larger batches."""
        return self.kind in (FLEET, LARGE)


REPLICAS = "replicas"
REGIONS = "regions"
QUEUE = "queue"
FLEET = "fleet"
LARGE = "large"

POINTS = (
    ScalePoint(REPLICAS, 4, 3, 600),
    ScalePoint(REPLICAS, 4, 32, 120),
    ScalePoint(REPLICAS, 4, 256, 40),
    ScalePoint(REGIONS, 4, 16, 120),
    ScalePoint(REGIONS, 16, 16, 60),
    ScalePoint(REGIONS, 64, 16, 40),
    ScalePoint(QUEUE, 1, _QUEUE_REPLICAS, 120, queue=100),
    ScalePoint(QUEUE, 1, _QUEUE_REPLICAS, 120, queue=1_000),
    ScalePoint(QUEUE, 1, _QUEUE_REPLICAS, 120, queue=10_000),
    ScalePoint(FLEET, 100, 50, 600),
    ScalePoint(LARGE, 100, 1_000, 30),
)


def scenario_of(point: ScalePoint) -> Scenario:
    """Scenario with regions at random points on a plane and requests that may go to every region: the most choice
    possible."""
    rng = random.Random(1)
    places = {f"region-{number}": (rng.random(), rng.random()) for number in range(point.regions)}
    document: dict[str, Any] = {
        "name": point.name,
        "duration": f"{point.simulated_s}s",
        "drain": "1s",
        "slots": SLOTS,
        "heartbeat_batch": _COARSE_INTERVAL if point.is_coarse else _BATCH,
        "round_trips": [
            [one, other, f"{4 + round(_ROUND_TRIP_MAX_MS * dist(places[one], places[other]) / 2**0.5)}ms"]
            for one, other in combinations(places, 2)
        ],
        "regions": {name: {"jurisdiction": "US", "replicas": point.replicas_a_region} for name in places},
        "workloads": {"chat": {"conversations": {"output_tokens": LONG_ANSWERS if point.is_coarse else ANSWERS}}},
        "clients": [
            {"region": name, "workload": "chat", "clients": _users(point, number)} for number, name in enumerate(places)
        ],
        "runs": [_run(point)],
    }
    return parse_scenario(document, Path("scale.yaml"))


def _users(point: ScalePoint, region: int) -> int:
    if point.queue:
        return point.replicas * SLOTS + point.queue
    users = _FEW_USERS_A_REPLICA if point.kind == LARGE else _USERS_A_REPLICA
    return point.replicas_a_region * users[region % len(users)]


def _run(point: ScalePoint) -> Mapping[str, Any]:
    """Run settings as in production, except for a queue that holds all requests and heartbeats that omit small
    changes."""
    queue = {"length_max": 100_000, "tenant_length_max": 100_000, "wait_max": "1h"}
    interval = _COARSE_INTERVAL if point.is_coarse else _PUBLISH_INTERVAL
    observation = {"publish_change_share": 0.25, "publish_interval": interval}
    return {"system": "skywalker", "queue": queue, "observation": observation}
