"""What is played live: which scenario, on which engines, with what changed. It plays nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.evaluation.experiments import SCENARIOS, Changes
from loadgen.evaluation.placement.workloads import REGIONS, find_traces
from loadgen.load.local_mesh import check_live
from loadgen.simulator.scenario import Scenario, load_scenario

_SCALE = 0.02
"""Of recorded sessions: about as many fit into the KV cache of an L4 as of theirs, a tenth as long, into an H100's."""

_AGENTS, _MORE_AGENTS = 20, 30
"""In each region, on two replicas: from the one to the other, a default of ours once fell."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load on one fleet."""

    name: str
    what: str
    path: Path
    changes: Changes = field(default_factory=dict)
    llamacpp: Path | None = None
    """The Python of an environment with llama.cpp, whose real servers take the place of emulated engines."""

    def scenario(self, seed: int) -> Scenario:
        """Raises ConfigError, also for what cannot be brought to life."""
        scenario = load_scenario(self.path, {"seed": seed, **self.changes})
        check_live(scenario, scenario.runs[0])
        return scenario


def cases(traces: Path | None, llamacpp: Path | None, changes: Mapping[str, object]) -> list[Case]:
    """Agents, more agents, and trees; recorded agents where their file is in the folder, real engines where they are
    given. `changes` are made to all."""
    sessions = find_traces(traces).sessions
    found = [
        _agentic("agentic", _AGENTS, sessions, changes),
        _agentic("agentic, half as many again", _MORE_AGENTS, sessions, changes),
        Case("mixed", "unequal trees of thoughts, made up", SCENARIOS / "live_mixed.yaml", changes),
    ]
    if llamacpp is not None:
        what = "made-up sessions of agents on two real llama.cpp servers with SmolLM2-135M"
        found.append(Case("agentic, real engines", what, SCENARIOS / "live_real.yaml", changes, llamacpp))
    return found


def _agentic(name: str, agents: int, sessions: Path | None, changes: Mapping[str, object]) -> Case:
    path = SCENARIOS / "live_agentic.yaml"
    asking: Changes = {f"clients.{number}.clients": agents for number in range(len(REGIONS))}
    if sessions is None:
        what = f"{agents} agents a region, made up: their prompts grow step by step"
        return Case(name, what, path, {**asking, **changes})
    trace = {"file": str(sessions), "scale_tokens": _SCALE, "pause_max": "2s", "input_tokens_max": 15_000}
    what = (
        f"{agents} agents a region, recorded sessions of coding agents: prompts and answers {_SCALE:g} times as long,"
        " pauses of 2 s at most"
    )
    return Case(name, what, path, {**asking, "workloads": {"session": {"trace": trace}}, **changes})
