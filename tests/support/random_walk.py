"""A seeded random walk through the events of a mesh: requests, heartbeats and failures.

Run as a script, it prints the digest of its story.
"""

from __future__ import annotations

import hashlib
import random
import sys

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.vocabulary import NO_HINTS, Hints, LegResult, ReplicaSpec, TenantName
from tests.support.core import AP, EU, MS, SECOND, US, policy, replica_spec, rule
from tests.support.mesh import Mesh

_REGIONS = {"gw-us": US, "gw-eu": EU, "gw-ap": AP}
_TENANTS = [TenantName("default"), TenantName("home"), TenantName("acme")]
_HINTS = [NO_HINTS, NO_HINTS, Hints(9, 3), Hints(ends_session=True), Hints(priority=1, comes_again=True)]
_RESULTS = [
    *[LegResult.COMPLETED] * 6,
    LegResult.FAILED,
    LegResult.BUSY,
    LegResult.CLIENT_ERROR,
    LegResult.INTERNAL,
]


class RandomWalk:
    """Three regions, one of them busy, under everything that can happen at the same time."""

    def __init__(self, seed: int, placement: PlacementPolicy = PlacementPolicy.COST) -> None:
        self._rng = random.Random(seed)
        self.mesh = Mesh(self._rng)
        self._asked = 0
        self.held = 0
        """Number of requests seen held for a replica, summed over the steps."""
        config = CoreConfig(placement=PlacementConfig(policy=placement), pushing=PushingConfig(in_band_credit=1))
        for name, place in _REGIONS.items():
            replicas = [replica_spec(f"{name}-{i}", place) for i in range(3)]
            tenants = {TenantName("home"): TenantPolicy(rule(place))}
            self.mesh.add_gateway(name, place, replicas, policy(place, tenants=tenants), config)
        self.mesh.connect_all()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._rng.choice([self._ask, self._ask, self._probe, self._hear, self._arrive, self._answer, self._leave])()
            self.mesh.advance(self._rng.randrange(20 * MS))
            self.held += sum(core.waiting.homes.bit_count() for core in self.mesh.cores.values())
        self.settle()

    def settle(self) -> None:
        """Let all faults end and all running requests complete."""
        for _ in range(200):
            for name in self.mesh.cores:
                self.mesh.probe(name, waiting=lambda _: 0, healthy=lambda _: True)
            while self.mesh.heartbeats:
                self.mesh.deliver_heartbeat(0, drop=False)
            while self.mesh.forwards_under_way:
                self.mesh.deliver_forward(0)
            for leg in self.mesh.replica_legs():
                if self.mesh.legs.get((leg.gateway, leg.order.request_id)) is leg:
                    self.mesh.end_leg(leg.gateway, leg.order.request_id, LegResult.COMPLETED)
            self.mesh.advance(100 * MS)
        self.mesh.advance(70 * SECOND)

    def digest(self) -> str:
        return hashlib.sha256(b"".join(self.mesh.told)).hexdigest()

    def _ask(self) -> None:
        self._asked += 1
        name = self._rng.choices(list(_REGIONS), [6, 1, 1])[0]
        prompt = f"system prompt of application {self._rng.randrange(3)} " * 4 + f"user {self._rng.randrange(9)} " * 20
        prompt *= self._rng.choice((1, 1, 20))  # long prompts are held for a replica while others are read
        hints = _HINTS[self._asked % len(_HINTS)]
        self.mesh.ask(name, f"q{self._asked}", self._rng.choice(_TENANTS), prompt, 30 * SECOND, hints=hints)

    def _probe(self) -> None:
        name = self._rng.choice(list(_REGIONS))
        busy = 0.6 if name == "gw-us" else 0.1

        def waiting(_: ReplicaSpec) -> int:
            return int(self._rng.random() < busy)

        def healthy(_: ReplicaSpec) -> bool:
            return self._rng.random() > 0.03

        self.mesh.probe(name, waiting=waiting, healthy=healthy)

    def _hear(self) -> None:
        for _ in range(len(self.mesh.heartbeats)):
            self.mesh.deliver_heartbeat(self._rng.randrange(len(self.mesh.heartbeats)), drop=self._rng.random() < 0.1)

    def _arrive(self) -> None:
        if self.mesh.forwards_under_way:
            self.mesh.deliver_forward(self._rng.randrange(len(self.mesh.forwards_under_way)))

    def _answer(self) -> None:
        legs = self.mesh.replica_legs()
        if not legs:
            return
        leg = self._rng.choice(legs)
        if self._rng.random() < 0.5 and not leg.tokens_seen:
            self.mesh.first_token(leg)
        else:
            self.mesh.end_leg(leg.gateway, leg.order.request_id, self._rng.choice(_RESULTS))

    def _leave(self) -> None:
        alive = [request_id for request_id, ask in self.mesh.asks.items() if not ask.ends]
        if alive and self._rng.random() < 0.2:
            self.mesh.abandon(self._rng.choice(alive))


if __name__ == "__main__":
    walk = RandomWalk(int(sys.argv[1]), PlacementPolicy(sys.argv[3]))
    walk.run(int(sys.argv[2]))
    sys.stdout.write(walk.digest())
