"""The worlds that the parts about fair shares are played in: one region, small engines, and who asks. It plays them,
and counts nothing."""

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
_FLOOD = {
    "bursts": {
        "requests": 60,
        "document_words": 600,
        "pause_s": {"median": 6, "sigma": 0.3, "minimum": 3, "maximum": 12},
    }
}


def client(tenant: str, *, rate: float = 0.0, floods: int = 0, service_class: str = "interactive") -> dict[str, Any]:
    """Somebody who chats, so many conversations a second, or so many who ask for a burst of long prompts at once."""
    who: dict[str, Any] = {"region": REGION, "tenant": tenant, "service_class": service_class}
    if floods:
        return who | {"workload": "flood", "clients": floods}
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
        "workloads": {"chat": _CHAT, "flood": _FLOOD},
        "clients": [dict(each) for each in clients],
        "runs": [dict(run or {})],
    }
    return parse_scenario(document, _HERE)


def play(scenario: Scenario, *, every_invariant: bool = False) -> Story:
    return World(scenario, scenario.runs[0], every_invariant=every_invariant).play()
