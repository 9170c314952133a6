"""Measures how many requests per second one gateway core decides, by number of replicas and with a long queue.

A request here is its whole life in the core: arrival, placement, first token, end, with probes in between; prompts are
32 KB conversations that share prefixes, under the default policy.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping
from statistics import median

from gateway.core import events, vocabulary
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PushingConfig, PushingMode, QueueConfig
from gateway.core.kernel.effects import Effect, StartLeg
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.placement.prefix_chain import prefix_chain, prefix_salt

PLACE = vocabulary.Place(vocabulary.RegionName("us-east-1"), vocabulary.Jurisdiction("US"))
MODEL = vocabulary.ModelName("llama")
TENANT = vocabulary.TenantName("default")
BLOCK_BYTES = 128
PROMPT_BYTES = 32 * 1024
CONVERSATIONS = 2_000
_REQUESTS = 4_000
_ROUNDS = 5
_SECOND_NS = 1_000_000_000
FAR_NS = 10**6 * _SECOND_NS


def run() -> Mapping[str, object]:
    """Medians of several rounds, each on a core that has been warmed up; ratios are within this run."""
    rates = {replicas: _requests_per_s(replicas, queued=0) for replicas in (8, 128, 1024)}
    queued = _requests_per_s(128, queued=10_000)
    lives = {replicas: life_us(replicas) for replicas in (2, 128)}
    telling_us = life_us(128, CoreConfig(cache_digests=CacheDigestsConfig(enabled=True)))
    return {
        "prompt_bytes": PROMPT_BYTES,
        **{f"requests_per_s_at_{replicas}_replicas": round(rate) for replicas, rate in rates.items()},
        **{f"life_us_at_{replicas}_replicas": round(life_us, 1) for replicas, life_us in lives.items()},
        "life_us_at_128_replicas_with_cache_digests": round(telling_us, 1),
        "requests_per_s_at_128_replicas_with_10000_queued": round(queued),
        "ratio_1024_to_8_replicas": round(rates[1024] / rates[8], 2),
        "ratio_10000_queued_to_none": round(queued / rates[128], 2),
    }


def _requests_per_s(replicas: int, *, queued: int) -> float:
    bench = _Bench(replicas, queued)
    bench.round()
    return median(bench.round() for _ in range(_ROUNDS))


def life_us(replicas: int, config: CoreConfig = CoreConfig()) -> float:  # noqa: B008 - a constant
    """Microseconds of the core for the life of one request by the defaults: selective pushing by pending requests, and
    five candidates recorded; two requests are in flight at each replica."""
    bench = _Bench(replicas, 0, config, in_flight=2 * replicas)
    bench.round()
    return 1e6 / median(bench.round() for _ in range(_ROUNDS))


class _Bench:
    """One core under a steady load: about half of each replica's limit in flight, or a queue that never empties."""

    def __init__(self, replicas: int, queued: int, config: CoreConfig | None = None, in_flight: int = 0) -> None:
        self._rng = random.Random(7)
        self._replicas = [vocabulary.ReplicaId(f"r{i}") for i in range(replicas)]
        self._in_flight_max = replicas * 8
        self._chains = [conversation(number) for number in range(CONVERSATIONS)]
        self._core = GatewayCore(vocabulary.GatewayId("gw"), PLACE, seed=1)
        self._now_ns = 0
        self._count = 0
        self._running: deque[tuple[vocabulary.RequestId, int]] = deque()
        specs = tuple(vocabulary.ReplicaSpec(replica_id, PLACE, (MODEL,)) for replica_id in self._replicas)
        open_rule = vocabulary.PlaceRule(regions=frozenset({PLACE.region}))
        pushing = PushingConfig(PushingMode.OUTSTANDING, outstanding_max=8)
        counting = CoreConfig(pushing=pushing, queue=QueueConfig(20_000, wait_max_ns=FAR_NS))
        self._tell(events.ConfigApplied(config or counting))
        self._tell(events.PolicyApplied(ResidencyPolicy(PLACE, open_rule, open_rule, digest="bench")))
        self._tell(events.AssignmentApplied(1, specs, ()))
        self._probe()
        for number in range(in_flight or (self._in_flight_max + queued if queued else self._in_flight_max // 2)):
            if number % replicas == 0:
                self._probe()
            self._ask()

    def round(self) -> float:
        started = time.perf_counter()  # noqa: TID251 - a benchmark measures
        for number in range(_REQUESTS):
            self._finish_one()
            self._ask()
            if number % 500 == 0:
                self._probe()
        return _REQUESTS / (time.perf_counter() - started)  # noqa: TID251 - a benchmark measures

    def _ask(self) -> None:
        self._count += 1
        chain = self._chains[self._rng.randrange(CONVERSATIONS)]
        request_id = vocabulary.RequestId(f"q{self._count}")
        profile = vocabulary.RequestProfile(
            request_id, MODEL, TENANT, PROMPT_BYTES, chain, BLOCK_BYTES, "session", stream=True
        )
        self._tell(events.RequestArrived(profile, FAR_NS))

    def _finish_one(self) -> None:
        request_id, attempt = self._running.popleft()
        self._tell(events.FirstToken(request_id, attempt, 1))
        self._tell(events.LegEnded(request_id, attempt, 1, vocabulary.LegResult.COMPLETED))

    def _probe(self) -> None:
        self._tell(
            events.ReplicasObserved(
                tuple(vocabulary.ReplicaObservation(replica, self._now_ns, healthy=True) for replica in self._replicas)
            )
        )

    def _tell(self, event: Event) -> None:
        self._now_ns += 1_000
        effects: list[Effect] = self._core.handle(event, self._now_ns)
        self._running.extend((effect.request_id, effect.attempt) for effect in effects if isinstance(effect, StartLeg))


def conversation(number: int) -> bytes:
    """A 32 KB conversation: an 8 KB system prompt of one of 20 applications, then a history of its own."""
    application = random.Random(number % 20).randbytes(8 * 1024)
    history = random.Random(1_000 + number).randbytes(PROMPT_BYTES - 8 * 1024)
    salt = prefix_salt(MODEL, TENANT, "")
    chain, _ = prefix_chain(salt, [application, history], block_bytes=BLOCK_BYTES, blocks_max=4096)
    return chain
