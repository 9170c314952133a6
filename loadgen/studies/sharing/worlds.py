"""The worlds of the parts about fair shares: one region, small engines, and the clients. It plays them, and counts none
of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import Story, World

REGION: Final = "us-east-1"
SLOTS: Final = 16
REPLICAS: Final = 2
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
        "round_trips": str(Path(__file__).parents[2] / "demo/round_trips.csv"),
        "regions": {REGION: {"jurisdiction": "US", "replicas": REPLICAS}},
        "workloads": {"chat": _CHAT, **_FLOODS},
        "clients": [dict(each) for each in clients],
        "runs": [dict(run or {})],
    }
    return parse_scenario(document, _HERE)


def play(scenario: Scenario, *, every_invariant: bool = False) -> Story:
    return World(scenario, scenario.runs[0], every_invariant=every_invariant).play()
