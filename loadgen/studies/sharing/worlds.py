"""The worlds of the parts about fair shares: one region, small engines, and the clients. It plays them, and counts none
of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import Story, World


@dataclass(frozen=True, slots=True)
class StudySize:
    """Amount that each part plays."""

    seeds_each: int = 1
    is_quick: bool = False
    """Only check that the parts can be played; their figures mean nothing."""

    @property
    def seeds(self) -> range:
        return range(1, 2 if self.is_quick else 1 + self.seeds_each)

    @property
    def seconds(self) -> int:
        """Length of a run of small worlds."""
        return 60 if self.is_quick else 240


REGION: Final = "us-east-1"
SLOTS: Final = 16
REPLICAS: Final = 2
ROUND_TRIPS: Final = Path(__file__).parents[2] / "demo/round_trips.csv"
_HERE = Path(__file__).parent / "worlds.py"
_CHAT = {"conversations": {"turns": {"median": 1, "sigma": 0.1, "minimum": 1, "maximum": 1}}}
LONG: Final = "long"
SHORT: Final = "short"
_PAUSE_S = {"median": 6, "sigma": 0.3, "minimum": 3, "maximum": 12}
_FLOODS = {
    LONG: {"bursts": {"requests": 60, "document_words": 600, "pause_s": _PAUSE_S}},
    SHORT: {"bursts": {"requests": 200, "document_words": 60, "pause_s": _PAUSE_S}},
}


def client(
    tenant: str, *, rate: float = 0.0, floods: int = 0, of: str = LONG, service_class: str = "interactive"
) -> dict[str, Any]:
    """Client of a tenant: chats at a rate of conversations per second, or a number of users who each send bursts of
    prompts."""
    who: dict[str, Any] = {"region": REGION, "tenant": tenant, "service_class": service_class}
    if floods:
        return who | {"workload": of, "clients": floods}
    return who | {"workload": "chat", "arrivals": {"rate": rate}}


def world(
    clients: Sequence[Mapping[str, Any]],
    run: Mapping[str, Any] | None = None,
    *,
    seconds: int,
    seed: int,
) -> Scenario:
    document = {
        "name": "sharing",
        "seed": seed,
        "duration": f"{seconds}s",
        "warm_up": f"{seconds // 6}s",
        "slots": SLOTS,
        "round_trips": str(ROUND_TRIPS),
        "regions": {REGION: {"jurisdiction": "US", "replicas": REPLICAS}},
        "workloads": {"chat": _CHAT, **_FLOODS},
        "clients": [dict(each) for each in clients],
        "runs": [dict(run or {})],
    }
    return parse_scenario(document, _HERE)


def play(scenario: Scenario, *, every_invariant: bool = False) -> Story:
    return World(scenario, scenario.runs[0], every_invariant=every_invariant).play()
