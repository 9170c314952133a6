"""What is played to see how the simulator's cost grows: with replicas, with regions, with the length of a queue.

Every replica is about as busy in each of them, so that the work grows with the fleet and nothing else; only in the
largest fleet most have little to do.
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
"""One region in three has more than its replicas take at once, so that it overflows."""
_FEW_USERS_A_REPLICA = (16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
"""The same for one region in ten; the others have little to do."""
_ROUND_TRIP_MAX_MS = 220
_QUEUE_REPLICAS = 16
ANSWERS = {"median": 200, "sigma": 0.9, "minimum": 8, "maximum": 1500}
"""Tokens of an answer: 300 in the mean, between what LMSYS-Chat-1M (215) and WildChat (441) report."""
LONG_ANSWERS = {"median": 400, "sigma": 0.9, "minimum": 16, "maximum": 3000}
"""600 in the mean: as many slots are busy with half the requests."""
_BATCH = "20ms"
_PUBLISH_INTERVAL = "100ms"
"""What a gateway waits at least between two heartbeats."""
_COARSE_INTERVAL = "250ms"
"""Both of these where a hundred regions hear each other."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run: so many regions of so many replicas for so long, and perhaps a queue that nobody else may shorten."""

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
        """It is so large that answers are long, and heartbeats fewer and in larger batches."""
        return self.kind in (FLEET, LARGE)


REPLICAS = "replicas"
REGIONS = "regions"
QUEUE = "queue"
FLEET = "fleet"
LARGE = "large"

POINTS = (
    Point(REPLICAS, 4, 3, 600),
    Point(REPLICAS, 4, 32, 120),
    Point(REPLICAS, 4, 256, 40),
    Point(REGIONS, 4, 16, 120),
    Point(REGIONS, 16, 16, 60),
    Point(REGIONS, 64, 16, 40),
    Point(QUEUE, 1, _QUEUE_REPLICAS, 120, queue=100),
    Point(QUEUE, 1, _QUEUE_REPLICAS, 120, queue=1_000),
    Point(QUEUE, 1, _QUEUE_REPLICAS, 120, queue=10_000),
    Point(FLEET, 100, 50, 600),
    Point(LARGE, 100, 1_000, 30),
)


def scenario_of(point: Point) -> Scenario:
    """Regions lie at random on a plane, and anybody's request may go anywhere: nobody has more to choose from."""
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


def _users(point: Point, region: int) -> int:
    if point.queue:
        return point.replicas * SLOTS + point.queue
    users = _FEW_USERS_A_REPLICA if point.kind == LARGE else _USERS_A_REPLICA
    return point.replicas_a_region * users[region % len(users)]


def _run(point: Point) -> Mapping[str, Any]:
    """As in production, but for a queue that holds them all and heartbeats that leave small changes out."""
    queue = {"length_max": 100_000, "tenant_length_max": 100_000, "wait_max": "1h"}
    interval = _COARSE_INTERVAL if point.is_coarse else _PUBLISH_INTERVAL
    observation = {"publish_change_share": 0.25, "publish_interval": interval}
    return {"system": "skywalker", "queue": queue, "observation": observation}
