"""Measures the cost of one placement decision of a gateway core, in microseconds.

The paper's rule and the default are measured side by side, with few replicas and with many, with and without the record
of the other targets considered. All variants take turns in one run, so that their ratios hold whatever else the machine
does.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping
from itertools import product
from statistics import median

from gateway.core import events, vocabulary
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.kernel.effects import Effect, StartLeg
from gateway.core.kernel.residency import ResidencyPolicy
from loadgen.bench.core import BLOCK_BYTES, CONVERSATIONS, FAR_NS, MODEL, PLACE, PROMPT_BYTES, TENANT, conversation

_POLICIES = (PlacementPolicy.PREFIX, PlacementPolicy.COST)
_REPLICAS = (2, 16, 128)
_RECORDED = (0, 5)
"""Values of `considered_max`: none, and the default."""
_PEERS, _MANY_PEERS = 2, 50
_OF_MANY_PEERS = 16
"""Replicas beside many peers."""
_REQUESTS = 1_000
_ROUNDS = 7
_RUNNING = 4
"""Requests on each replica."""


def run() -> Mapping[str, object]:
    """Medians of several rounds, each of every kind in turn, on cores that have been warmed up."""
    kinds = list(product(_POLICIES, _REPLICAS, _RECORDED))
    cores = {kind: _Bench(*kind) for kind in kinds}
    beside_many = _Bench(PlacementPolicy.COST, _OF_MANY_PEERS, _RECORDED[-1], peers=_MANY_PEERS)
    beside_many.round()
    rounds: dict[tuple[PlacementPolicy, int, int], list[float]] = {kind: [] for kind in kinds}
    many_rounds = []
    for bench in cores.values():
        bench.round()
    for _ in range(_ROUNDS):
        for kind, bench in cores.items():
            rounds[kind].append(bench.round())
        many_rounds.append(beside_many.round())
    cost = {kind: median(each) for kind, each in rounds.items()}
    few, *_, many = _REPLICAS
    recorded = _RECORDED[-1]
    figures: dict[str, object] = {
        f"{policy}_{replicas}_replicas_{'recorded' if record else 'bare'}_us": round(cost[policy, replicas, record], 1)
        for policy, replicas, record in kinds
    }
    for policy in _POLICIES:
        ratio = cost[policy, many, recorded] / cost[policy, few, recorded]
        figures[f"{policy}_ratio_{many}_to_{few}_replicas"] = round(ratio, 2)
    alike = cost[PlacementPolicy.COST, _OF_MANY_PEERS, recorded]
    figures[f"{PlacementPolicy.COST}_ratio_{_MANY_PEERS}_to_{_PEERS}_peers"] = round(median(many_rounds) / alike, 2)
    dearer = cost[_POLICIES[1], many, recorded] / cost[_POLICIES[0], many, recorded]
    return figures | {f"ratio_{_POLICIES[1]}_to_{_POLICIES[0]}": round(dearer, 2)}


class _Bench:
    """One core under a steady load without queueing: prefills end at once, and each new request follows the end of
    one."""

    def __init__(self, policy: PlacementPolicy, replicas: int, recorded: int, *, peers: int = _PEERS) -> None:
        self._peers = [_peer(number) for number in range(peers)]
        self._rng = random.Random(7)
        self._replicas = [vocabulary.ReplicaId(f"r{number}") for number in range(replicas)]
        self._chains = [conversation(number) for number in range(CONVERSATIONS // 10)]
        self._core = GatewayCore(vocabulary.GatewayId("gw"), PLACE, seed=1)
        self._now_ns = self._asked = self._heard = 0
        self._running: deque[tuple[vocabulary.RequestId, int]] = deque()
        specs = tuple(vocabulary.ReplicaSpec(replica_id, PLACE, (MODEL,)) for replica_id in self._replicas)
        everywhere = vocabulary.PlaceRule(jurisdictions=frozenset({PLACE.jurisdiction, vocabulary.Jurisdiction("AA")}))
        placement = PlacementConfig(policy=policy, considered_max=recorded)
        self._tell(events.ConfigApplied(CoreConfig(placement)))
        self._tell(events.PolicyApplied(ResidencyPolicy(PLACE, everywhere, everywhere, digest="bench")))
        self._tell(events.AssignmentApplied(1, specs, tuple(self._peers)))
        self._observe()
        for _ in range(_RUNNING * replicas):
            self._ask()

    def round(self) -> float:
        """Mean microseconds per decision."""
        spent_s = 0.0
        for number in range(_REQUESTS):
            if number % 100 == 0:
                self._observe()
            self._finish_one()
            spent_s += self._ask()
        return spent_s / _REQUESTS * 1e6

    def _ask(self) -> float:
        self._asked += 1
        chain = self._chains[self._rng.randrange(len(self._chains))]
        request_id = vocabulary.RequestId(f"q{self._asked}")
        profile = vocabulary.RequestProfile(
            request_id, MODEL, TENANT, PROMPT_BYTES, chain, BLOCK_BYTES, "session", stream=True
        )
        event = events.RequestArrived(profile, FAR_NS)
        started = time.thread_time()
        effects = self._tell(event)
        spent_s = time.thread_time() - started
        for leg in effects:
            if isinstance(leg, StartLeg):
                self._running.append((leg.request_id, leg.attempt))
                self._tell(events.FirstToken(leg.request_id, leg.attempt, 1))
        return spent_s

    def _finish_one(self) -> None:
        request_id, attempt = self._running.popleft()
        self._tell(events.LegEnded(request_id, attempt, 1, vocabulary.LegResult.COMPLETED))

    def _observe(self) -> None:
        seen = (
            vocabulary.ReplicaObservation(replica, self._now_ns, healthy=True, running=self._rng.randrange(8))
            for replica in self._replicas
        )
        self._tell(events.ReplicasObserved(tuple(seen)))
        self._heard += 1
        self._tell(events.PeersObserved(tuple(map(self._heartbeat, self._peers))))

    def _heartbeat(self, peer: vocabulary.PeerSpec) -> vocabulary.PeerObservation:
        count = len(self._replicas)
        load = count * _RUNNING
        capacity = vocabulary.ModelCapacity(
            MODEL, vocabulary.DEFAULT_POOL, peer.place, count, count, load=load, room=count
        )
        report = vocabulary.LoadReport(peer.gateway_id, peer.place, self._heard, True, 1, "bench", (capacity,))
        return vocabulary.PeerObservation(report, self._now_ns, self._now_ns, 80_000_000, 80_000_000)

    def _tell(self, event: Event) -> list[Effect]:
        self._now_ns += 1_000
        return self._core.handle(event, self._now_ns)


def _peer(number: int) -> vocabulary.PeerSpec:
    place = vocabulary.Place(vocabulary.RegionName(f"region-{number}"), vocabulary.Jurisdiction("AA"))
    return vocabulary.PeerSpec(vocabulary.GatewayId(f"gw-{number}"), place)
