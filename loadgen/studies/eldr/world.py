"""Simulates a disaggregated pool in virtual time: prefill workers, the production decode tier, and decode workers whose
step times depend on their batches' experts. It plays one setting, and counts latencies as clients see them.

Chance is seeded: equal settings give equal figures. Signatures are computed by the production function.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import fmean
from typing import assert_never

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import (
    LATE_POLICIES,
    BalanceConfig,
    DecodeConfig,
    DecodePolicyName,
)
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId
from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, Pulled, Steps
from loadgen.engine.experts import ExpertCosts, ExpertLoad, Packed, log_absence
from loadgen.engine.model import Finished, FirstTokenMade
from loadgen.figures import Figures
from loadgen.studies.eldr.baselines import ByDomain, ScoredLocal
from loadgen.studies.eldr.requests import Requests
from loadgen.studies.oracle import Oracle

_NS = 1_000_000_000
_LEASE_NS = 480 * _NS


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Costs of engines. The source of each is given on the page."""

    base_ns: int = 4_000_000
    layer_ns: float = 25_400.0
    expert_ns: float = 1_780.0
    kv_token_ns: int = 19
    prefill_base_ns: int = 20_000_000
    prefill_token_ns: int = 60_000
    transfer_ns: int = 5_000_000


@dataclass(frozen=True, slots=True)
class EldrFleet:
    prefill: int = 8
    decode: int = 16
    """Decode workers: ranks, where several form one group."""
    group: int = 1
    """Ranks of a group, which step in time."""
    shares_experts: bool = False
    """The ranks of a group shard the experts, and so each step reads the experts of all their batches."""
    expert_ranks: int = 1
    """Engines over which each worker's experts are sharded."""
    batch: int = 256
    prefix_blocks: int = 0
    """Prompts that each prefill worker's cache holds; 0 for no cache."""


@dataclass(frozen=True, slots=True)
class Play:
    """One cell, except its requests."""

    policy: str
    """A production policy, or `domain`, `scored`."""
    rate: float
    band: float = 0.1
    seconds: float = 60.0
    warm_up_s: float = 15.0
    output_tokens: int = 512
    output_sigma: float = 0.0
    """Standard deviation of the logarithm of an answer's tokens; 0: all are equally long, as in the paper."""
    seed: int = 1
    fleet: EldrFleet = EldrFleet()
    costs: EngineCosts = EngineCosts()
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    score_weight: float = 1.0
    placed_experts: bool = False
    whole_signatures: bool = True
    """Cached parts of a prompt count in its signature. False: an engine that counts only the tokens that it
    prefills."""
    ages_known: bool = False
    """Policies that look ahead use an oracle as predictor."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests of a cell, and the data derived from them."""

    requests: Requests
    absences: list[Packed]
    nearness: list[Nearness | None]
    """Nearness of each request to the artifact in force; None without one."""
    comparer: Comparer | None = None
    placement: npt.NDArray[np.uint16] | None = None
    """Placement of experts by cluster."""
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of the domains, in the calibration."""
    later: tuple[float, Drawn] | None = None
    """Second from which requests are drawn from another mix, and that mix."""
    refit: tuple[float, Comparer, list[Nearness | None], list[Nearness | None]] | None = None
    """Second from which another artifact is in force, that artifact, and the nearness of the requests of either mix to
    it."""


def drawn_from(
    requests: Requests,
    comparer: Comparer | None,
    *,
    shares: dict[str, float] | None = None,
    placement: npt.NDArray[np.uint16] | None = None,
) -> Drawn:
    return Drawn(
        requests,
        [log_absence(each) for each in requests.decode],
        compared(requests, comparer),
        comparer,
        placement,
        shares or {},
    )


def compared(requests: Requests, comparer: Comparer | None) -> list[Nearness | None]:
    return [None if comparer is None else comparer.nearness(each) for each in requests.prefill]


def play(setting: Play, drawn: Drawn) -> Figures:
    return _World(setting, drawn).play()


@dataclass(slots=True)
class _Asked:
    came_ns: int
    which: int
    is_later: bool
    output_tokens: int
    first_ns: int = -1
    group: int = -1


class _Cache:
    """Prompts that a prefill worker has processed lately."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: OrderedDict[tuple[bool, int], None] = OrderedDict()

    def take(self, prompt: tuple[bool, int]) -> bool:
        """Add a prompt; returns True if it was cached."""
        if not self._room:
            return False
        known = prompt in self._kept
        self._kept[prompt] = None
        self._kept.move_to_end(prompt)
        if len(self._kept) > self._room:
            self._kept.popitem(last=False)
        return known


class _Tally:
    """Counters of one group's steps inside the measured window."""

    def __init__(self, window: tuple[int, int], bins: list[float]) -> None:
        self._window = window
        self.steps = 0
        self.experts = 0.0
        self.tokens = 0
        self.bins: list[list[float]] = [[0.0, 0.0] for _ in bins]
        self._edges = bins

    def __call__(self, told: Steps) -> None:
        begin_ns, end_ns = self._window
        if not begin_ns <= told.begin_ns < end_ns:
            return
        for running, experts in zip(told.running, told.experts, strict=True):
            if running:
                self.steps += told.steps
                self.experts += told.steps * experts
                self.tokens += told.steps * running
                part = self.bins[max(0, bisect_right(self._edges, told.begin_ns / _NS) - 1)]
                part[0] += told.steps
                part[1] += told.steps * experts


class _World:
    def __init__(self, setting: Play, drawn: Drawn) -> None:
        self._setting, self._drawn = setting, drawn
        self._rng = random.Random(setting.seed)
        fleet = setting.fleet
        self._asked = self._arrivals()
        is_known = setting.policy not in ("domain", "scored")
        policy = DecodePolicyName(setting.policy) if is_known else DecodePolicyName.JOIN_SHORTEST_QUEUE
        if setting.policy == "scored":
            policy = DecodePolicyName.BR_H_LOCAL
        config = DecodeConfig(
            policy=policy,
            bypass=policy not in LATE_POLICIES,
            balance=setting.balance,
            band=setting.band,
            pool_ttl_ns=_LEASE_NS,
            considered_max=0,
            room_margin=fleet.decode,
        )
        spec = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, fleet.batch)
        oracle = Oracle({str(at): each.output_tokens for at, each in enumerate(self._asked)})
        predictor = oracle if setting.ages_known else None
        self._tier = DecodeTier(config, spec, random.Random(setting.seed), predictor, policies=BUILT_IN | BY_EXPERTS)
        self._place_of: dict[ReplicaId, tuple[int, int]] = {}
        groups = fleet.decode // fleet.group
        for group in range(groups):
            for rank in range(fleet.group):
                worker_id = ReplicaId(f"w{group:03}.{rank:02}")
                self._place_of[worker_id] = group, rank
                self._tier.join(worker_id, f"g{group:03}" if fleet.group > 1 else "", 0)
        if drawn.comparer is not None:
            self._tier.take_artifact(drawn.comparer.digest, drawn.comparer.clusters, 0)
        self._set_baseline(config)
        window = round(setting.warm_up_s * _NS), round(setting.seconds * _NS)
        self._window = window
        edges = [0.0] if drawn.later is None else [0.0, drawn.later[0], *([drawn.refit[0]] if drawn.refit else [])]
        self._tallies = [_Tally(window, edges) for _ in range(groups)]
        self._groups = [self._group(number) for number in range(groups)]
        self._changes_ns: list[int | None] = [None] * groups
        """Time of the next change in each of the groups."""
        self._next = 0
        self._outside: deque[int] = deque()
        self._readers = [0] * fleet.prefill
        """Time from which each prefill worker is free."""
        self._caches = [_Cache(fleet.prefix_blocks) for _ in range(fleet.prefill)]
        self._reading: list[tuple[int, int, bool]] = []
        self._tpots: list[float] = []
        self._ttfts: list[float] = []
        self._refitted = False

    def _set_baseline(self, config: DecodeConfig) -> None:
        setting, drawn, tier = self._setting, self._drawn, self._tier
        if setting.policy == "domain":
            domains = {
                str(at): self._mix(each.is_later).requests.domains[each.which] for at, each in enumerate(self._asked)
            }
            workers = setting.fleet.decode
            tier.policy = ByDomain(config, self._rng, domain_of=domains, shares=drawn.shares, workers=workers)
        elif setting.policy == "scored":
            predictor = tier.policy.predictor
            tier.policy = ScoredLocal(config, self._rng, predictor, tier.seats, weight=setting.score_weight)

    def _group(self, number: int) -> DecodeGroup:
        setting, fleet = self._setting, self._setting.fleet
        shape, costs = self._drawn.requests.shape, setting.costs
        experts = ExpertCosts(shape.layers, shape.experts, costs.layer_ns, costs.expert_ns, fleet.expert_ranks)
        placement = None
        if setting.placed_experts and self._drawn.placement is not None:
            placement = self._drawn.placement[number]
        loads = [ExpertLoad(experts, placement) for _ in range(1 if fleet.shares_experts else fleet.group)]
        loads *= fleet.group // len(loads)
        config = DecodeGroupConfig(fleet.group, fleet.batch, costs.base_ns, costs.kv_token_ns)
        return DecodeGroup(config, self._tallies[number], loads)

    def _arrivals(self) -> list[_Asked]:
        """Poisson arrivals; each prompt is drawn from the mix of its time."""
        setting, asked, at_s = self._setting, [], 0.0
        while (at_s := at_s + self._rng.expovariate(setting.rate)) < setting.seconds:
            is_later = self._drawn.later is not None and at_s >= self._drawn.later[0]
            which = self._rng.randrange(len(self._mix(is_later).requests))
            tokens = setting.output_tokens
            if setting.output_sigma:
                drawn = self._rng.lognormvariate(-(setting.output_sigma**2) / 2, setting.output_sigma)
                tokens = max(8, round(setting.output_tokens * drawn))
            asked.append(_Asked(round(at_s * _NS), which, is_later, tokens))
        return asked

    def _mix(self, is_later: bool) -> Drawn:
        if is_later and self._drawn.later is not None:
            return self._drawn.later[1]
        return self._drawn

    # Time

    def play(self) -> Figures:
        now_ns, end_ns = 0, self._window[1]
        while (due_ns := self._due_ns()) is not None:
            now_ns = max(now_ns, due_ns)
            if now_ns >= end_ns:
                break
            self._refit(now_ns)
            self._hear(now_ns)
            self._read(now_ns)
            self._tick(now_ns)
        for group in self._groups:
            group.look(max(now_ns, end_ns))
        return self._figures()

    def _due_ns(self) -> int | None:
        came = self._asked[self._next].came_ns if self._next < len(self._asked) else None
        read = self._reading[0][0] if self._reading else None
        due = [each for each in (came, read, self._tier.next_ns(), *self._changes_ns) if each is not None]
        return min(due) if due else None

    def _refit(self, now_ns: int) -> None:
        refit = self._drawn.refit
        if refit is not None and not self._refitted and now_ns >= refit[0] * _NS:
            self._refitted = True
            self._tier.take_artifact(refit[1].digest, refit[1].clusters, now_ns)

    def _hear(self, now_ns: int) -> None:
        for number, next_ns in enumerate(self._changes_ns):
            if next_ns is None or next_ns > now_ns:
                continue
            group = self._groups[number]
            for told in group.advance(now_ns):
                key = RequestId(told.request_id)
                asked = self._asked[int(key)]
                match told:
                    case Pulled():
                        pass
                    case FirstTokenMade():
                        asked.first_ns = told.at_ns
                        self._tier.running(key)
                        if asked.came_ns >= self._window[0]:
                            self._ttfts.append(told.at_ns - asked.came_ns)
                    case Finished():
                        self._tier.ended(key, now_ns, asked.output_tokens)
                        if asked.first_ns >= self._window[0]:
                            self._tpots.append((told.at_ns - asked.first_ns) / (asked.output_tokens - 1))
                    case _:
                        assert_never(told)
            self._changes_ns[number] = group.next_change_ns()

    def _read(self, now_ns: int) -> None:
        """Prefill arrived requests: each goes to the prefill worker that has its prompt cached, or to the first that is
        free."""
        while self._next < len(self._asked) and self._asked[self._next].came_ns <= now_ns:
            self._outside.append(self._next)
            self._next += 1
        while self._reading and self._reading[0][0] <= now_ns:
            _, number, is_known = heappop(self._reading)
            self._prefilled(number, is_known, now_ns)
        while self._outside and self._tier.has_room(len(self._reading)):
            self._prefill(self._outside.popleft(), now_ns)

    def _prefill(self, number: int, now_ns: int) -> None:
        asked, costs = self._asked[number], self._setting.costs
        prompt = asked.is_later, asked.which
        home = hash(prompt) % len(self._readers)
        least = min(range(len(self._readers)), key=lambda reader: self._readers[reader])
        is_busy = self._readers[home] > now_ns + costs.prefill_base_ns * 4
        reader = home if self._setting.fleet.prefix_blocks and not is_busy else least
        is_known = self._caches[reader].take(prompt)
        tokens = self._mix(asked.is_later).requests.prompt_tokens[asked.which]
        took_ns = costs.prefill_base_ns + (0 if is_known else tokens * costs.prefill_token_ns)
        self._readers[reader] = max(self._readers[reader], now_ns) + took_ns
        heappush(self._reading, (self._readers[reader], number, is_known))

    def _prefilled(self, number: int, is_known: bool, now_ns: int) -> None:
        asked = self._asked[number]
        mix = self._mix(asked.is_later)
        nearness = mix.nearness[asked.which]
        if self._refitted and self._drawn.refit is not None:
            _, _, before, later = self._drawn.refit
            nearness = (later if asked.is_later else before)[asked.which]
        if is_known and not self._setting.whole_signatures:
            nearness = None
        tokens = mix.requests.prompt_tokens[asked.which]
        facts = Facts(RequestId(str(number)), tokens, nearness=nearness)
        admission = self._tier.add(facts, now_ns, now_ns + _LEASE_NS)
        if admission is not None:
            self._send(admission.key, admission.worker_id, now_ns)

    def _tick(self, now_ns: int) -> None:
        if self._setting.ages_known and self._tier.wants_progress(now_ns):
            for number, asked in enumerate(self._asked[: self._next]):
                if asked.first_ns >= 0 and asked.group >= 0:
                    self._progress(number, asked)
        for admission in self._tier.tick(now_ns):
            self._send(admission.key, admission.worker_id, now_ns)

    def _progress(self, number: int, asked: _Asked) -> None:
        key = RequestId(str(number))
        if self._tier.worker_of(key) is not None:
            self._tier.progressed(key, self._groups[asked.group].generated(key))

    def _send(self, key: RequestId, worker_id: ReplicaId, now_ns: int) -> None:
        asked = self._asked[int(key)]
        mix = self._mix(asked.is_later)
        asked.group, rank = self._place_of[worker_id]
        said = self._groups[asked.group].admit(
            key,
            rank,
            mix.requests.prompt_tokens[asked.which],
            asked.output_tokens,
            now_ns,
            transfer_ns=self._setting.costs.transfer_ns,
            absence=mix.absences[asked.which],
        )
        assert said is None, said
        self._changes_ns[asked.group] = self._groups[asked.group].next_change_ns()

    def _figures(self) -> Figures:
        steps = sum(each.steps for each in self._tallies)
        signatures = self._tier.figures(self._window[1]).signatures
        parts = list(zip(*(each.bins for each in self._tallies), strict=True))
        busiest = max(self._tallies, key=lambda each: each.tokens)
        return {
            "experts": sum(each.experts for each in self._tallies) / max(1, steps),
            "experts_by_part": [
                sum(each[1] for each in part) / max(1, sum(each[0] for each in part)) for part in parts
            ],
            "batch": sum(each.tokens for each in self._tallies) / max(1, steps),
            "tokens_per_s": sum(each.tokens for each in self._tallies) / (self._window[1] - self._window[0]) * _NS,
            "busiest": busiest.tokens / max(1, sum(each.tokens for each in self._tallies)) * len(self._tallies),
            "tpot_p50_ms": _percentile(self._tpots, 0.5) / 1e6,
            "tpot_p99_ms": _percentile(self._tpots, 0.99) / 1e6,
            "ttft_p50_ms": _percentile(self._ttfts, 0.5) / 1e6,
            "ttft_p99_ms": _percentile(self._ttfts, 0.99) / 1e6,
            "ttft_mean_ms": fmean(self._ttfts) / 1e6 if self._ttfts else 0.0,
            "finished": len(self._tpots),
            "signatures": {str(state): count for state, count in signatures.items() if count},
        }


def _percentile(numbers: Sequence[float], share: float) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
