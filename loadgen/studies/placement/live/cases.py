"""The cases that are played live: scenarios, engines and changes. It plays nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from loadgen.load.local_mesh import check_live
from loadgen.simulator.scenario import Scenario, load_scenario
from loadgen.studies.experiments import SCENARIOS, Changes
from loadgen.studies.placement.workloads import REGIONS, find_traces

_SCALE = 0.02
"""Scale of recorded sessions: about as many of them, a tenth as long, fit into the KV cache of an L4 as full ones into
an H100's."""

_AGENTS, _MORE_AGENTS = 20, 30
"""Agents in each region, on two replicas: between these numbers, an earlier default lost throughput."""


@dataclass(frozen=True, slots=True)
class LiveCase:
    """One load on one fleet."""

    name: str
    what: str
    path: Path
    changes: Changes = field(default_factory=dict)
    llamacpp: Path | None = None
    """The Python of an environment with llama.cpp, whose real servers take the place of emulated engines."""
    beside: str = ""
    """Name of another case with a part of this one's engines: Nightside must serve more here than there."""

    def scenario(self, seed: int) -> Scenario:
        """Scenario of the case. Raises ConfigError, also for one that cannot be played live."""
        scenario = load_scenario(self.path, {"seed": seed, **self.changes})
        check_live(scenario, scenario.runs[0])
        return scenario


def cases(traces: Path | None, llamacpp: Path | None, changes: Mapping[str, object]) -> list[LiveCase]:
    """Agents, more agents, and trees; recorded agents where their file is in the folder, real engines where they are
    given. `changes` apply to all."""
    sessions = find_traces(traces).sessions
    found = [
        _agentic("agentic", _AGENTS, sessions, changes),
        _agentic("agentic, half as many again", _MORE_AGENTS, sessions, changes),
        LiveCase("mixed", "unequal trees of thoughts, made up", SCENARIOS / "live_mixed.yaml", changes),
        *_few_large(changes),
    ]
    if llamacpp is not None:
        what = "made-up sessions of agents on two real llama.cpp servers with SmolLM2-135M"
        found.append(LiveCase("agentic, real engines", what, SCENARIOS / "live_real.yaml", changes, llamacpp))
    return found


def _few_large(changes: Mapping[str, object]) -> list[LiveCase]:
    """Cases of large engines: one of 16 slots alone, and beside one of 4 whose region has all users; then at the
    distance of another continent, as four engines of 4 slots, and with users in three regions."""
    path = SCENARIOS / "few_large.yaml"
    large = {"jurisdiction": "EU", "replicas": 1, "slots": 16}
    alone: Changes = {
        "about": "One engine of 16 slots in the EU, where all users are.",
        "regions": {"eu-west-1": large},
        "clients.0.region": "eu-west-1",
        "balancer_region": "eu-west-1",
        "round_trips": [],
    }
    origins = ("us-east-1", "us-west-2", "ap-northeast-1")
    jurisdictions = dict(zip(origins, ("US", "US", "JP"), strict=True))
    small = {name: {"jurisdiction": jurisdictions[name], "replicas": 1, "slots": 4} for name in origins}
    several: Changes = {
        "about": "Three engines of 4 slots in three regions, where the users are, and one of 16 in the EU, 1 ms apart.",
        "regions": {**small, "eu-west-1": large},
        "clients": [{"region": name, "workload": "chat", "clients": 12} for name in origins],
        "round_trips": [[one, other, "1ms"] for one, other in combinations([*origins, "eu-west-1"], 2)],
    }
    whole = "a large engine alone"
    small_at_home = "One engine of 4 slots in the US, where all users are, and"
    far: Changes = {
        "about": f"{small_at_home} one of 16 in the EU, 150 ms apart.",
        "round_trips": [["us-east-1", "eu-west-1", "150ms"]],
    }
    parts: Changes = {
        "about": f"{small_at_home} four of 4 in the EU, 1 ms apart.",
        "regions.eu-west-1": {**large, "replicas": 4, "slots": 4},
    }
    found: list[tuple[str, str, Changes]] = [
        ("and a small one", "24 users where the small engine is", {}),
        ("and a small one, far apart", "24 users where the small engine is", far),
        ("in four parts", "24 users where the small engine is", parts),
        ("and three small ones", "12 users at each of three small engines", several),
    ]
    cases = [LiveCase(whole, "24 users where the one engine of 16 slots is", path, {**alone, **changes})]
    return cases + [
        LiveCase(f"a large engine {name}", what, path, {**own, **changes}, beside=whole) for name, what, own in found
    ]


def _agentic(name: str, agents: int, sessions: Path | None, changes: Mapping[str, object]) -> LiveCase:
    path = SCENARIOS / "live_agentic.yaml"
    asking: Changes = {f"clients.{number}.clients": agents for number in range(len(REGIONS))}
    if sessions is None:
        what = f"{agents} agents a region, made up: their prompts grow step by step"
        return LiveCase(name, what, path, {**asking, **changes})
    trace = {"file": str(sessions), "scale_tokens": _SCALE, "pause_max": "2s", "input_tokens_max": 15_000}
    what = (
        f"{agents} agents a region, recorded sessions of coding agents: prompts and answers {_SCALE:g} times as long,"
        " pauses of 2 s at most"
    )
    return LiveCase(name, what, path, {**asking, "workloads": {"session": {"trace": trace}}, **changes})
