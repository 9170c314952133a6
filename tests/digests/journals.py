"""Writes the journals that `tests/simulation/test_recorded_journals.py` replays: one gateway of each of a few worlds.

`python -m tests.digests.journals` overwrites them; that is for a change of the journal's format alone, since journals
written by an earlier version prove that a later one decides alike.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId
from gateway.records.journal import new_header
from loadgen.simulator.chaos import ChaosKind, chaos_scenario
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.world import World
from mesh.journal_lines import encode_header, encode_step
from mesh.steps import Step

FOLDER = Path(__file__).with_name("journals")
RECORDED = ("mesh/4", "controller/2", "disaggregated/3", "breaking/5", "pools/7")


class _Steps(DecisionDigest):
    """Keeps the steps of each gateway's first life."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[GatewayId, int] = {}
        self.specs: dict[GatewayId, GatewaySpec] = {}
        self.steps: dict[GatewayId, list[bytes]] = {}

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        self.lives[spec.gateway_id] = self.lives.get(spec.gateway_id, 0) + 1
        self.specs.setdefault(spec.gateway_id, spec)

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        if self.lives[gateway_id] == 1:
            self.steps.setdefault(gateway_id, []).append(encode_step(Step(now_ns, event, effects)))


def path_of(name: str) -> Path:
    """File of one world's journal."""
    return FOLDER / f"{name.replace('/', '-')}.journal.gz"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name in RECORDED:
        flavour, _, seed = name.partition("/")
        scenario = chaos_scenario(int(seed), ChaosKind(flavour))
        steps = _Steps()
        world = World(scenario, scenario.runs[0], every_invariant=True, decisions=steps)
        world.play()
        gateway_id = max(steps.steps, key=lambda each: len(steps.steps[each]))
        spec = steps.specs[gateway_id]
        core_seed = world.core_seed(gateway_id)
        header = new_header(gateway_id, spec.place, spec.config.placement, seed=core_seed, story=name)
        lines = [encode_header(header), *steps.steps[gateway_id]]
        path_of(name).write_bytes(gzip.compress(b"".join(lines), mtime=0))


if __name__ == "__main__":
    main()
