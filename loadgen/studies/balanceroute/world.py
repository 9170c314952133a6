"""Simulates the production decode tier without a gateway, in front of a modelled group of workers that step behind one
barrier. Requests arrive with their prefill complete; requests without room wait before that, as in production.

It plays one setting until all of its requests were sent, and counts tokens and time until then; loads are weighed while
requests arrive. A replay is played until all requests have ended, and everything counts. Time is virtual, chance is
seeded: equal settings give equal figures.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import assert_never

from msgspec import to_builtins

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.config import BalanceConfig, DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays, PromptKey
from gateway.core.features.disaggregated.predictors.estimator import Ages, Features
from gateway.core.features.disaggregated.predictors.exact_match import fit_exact_match
from gateway.core.features.disaggregated.predictors.fitted import FittedPredictor, Noted
from gateway.core.features.disaggregated.predictors.history import History
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId
from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, Pulled
from loadgen.engine.model import Finished, FirstTokenMade
from loadgen.figures import Figures
from loadgen.studies.balanceroute.bound import Ran, gap_at_least
from loadgen.studies.balanceroute.capacity import kv_tokens_of, requests_per_ns
from loadgen.studies.balanceroute.foresight import ForesightCounter
from loadgen.studies.balanceroute.loads import LOADS, OrderedLoad, PrefilledRequest, asked
from loadgen.studies.balanceroute.tally import Tally
from loadgen.studies.cells import Cell
from loadgen.studies.oracle import Oracle
from loadgen.studies.recordings import find_file

BACKLOG = 0.0
"""Value of `offered` for a standing backlog: as much load as fits at any time."""
_ALWAYS_NS = 1 << 62
_UNBOUNDED = 100_000
"""Requests in flight beyond a batch for a router that bounds none: the largest number that a config may state."""
_FITTED = ("survival", "exact_match")
_LAGS = (1, 3, 10, 30, 60, 120, 240)


@dataclass(frozen=True, slots=True)
class BalanceCell:
    """One cell: all inputs of its figures except the code and the load's files."""

    load: str
    policy: DecodePolicyName
    predictor: str = ""
    """Predictor of BR-H: oracle, survival or exact_match."""
    workers: int = 8
    batch: int = 16
    requests: int = 1_000
    """Number of requests after those that run at the start."""
    offered: float = BACKLOG
    """Offered load, as a share of the capacity of perfectly balanced workers."""
    seed: int = 1
    base_ns: int = 10_000_000
    kv_token_ns: int = 250
    transfer_base_ns: int = 2_000_000
    transfer_token_ns: int = 6_500
    """Transfer time per token of a prompt's KV cache."""
    early: int = 0
    """Requests that the tier sends each worker beyond its batch: their KV cache is transferred while they wait for a
    slot."""
    bypass: bool = False
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    room_margin: int = DecodeConfig().room_margin
    lease_s: int = 480
    """Time for which a prompt's KV cache is kept, and the maximum wait in the pool: 480 s is vLLM's own bound with
    Mooncake, which the paper had."""
    keep_steps: int = 0
    is_bounded: bool = False
    """Compute the lower bound as well."""


@dataclass(frozen=True, slots=True)
class PlayProtocol:
    """Way in which requests come to the workers; the default is the steady state, through the pool, with KV caches that
    never fill."""

    is_replay: bool = False
    """Begin with empty workers, play until every request has ended, and count from the first arrival on."""
    sends_at_once: bool = False
    """Send each request to a worker when it arrives, however many wait there, and without knowledge of KV caches, as a
    router in front of engines does."""
    room_share: float = 0.0
    """Room in a worker's KV cache, as a share of a batch of mean requests with their whole answers, but enough for the
    longest one; 0: unlimited."""


STEADY_POOL = PlayProtocol()


def play(setting: BalanceCell, traces: Path | None, protocol: PlayProtocol = STEADY_POOL) -> Figures:
    """Figures of the setting. Raises TraceError."""
    return _World(setting, asked(LOADS[setting.load], traces), protocol).play()


def cell_of(setting: BalanceCell, traces: Path | None) -> Cell:
    """Cell for the engine. Raises TraceError for a file that is missing."""
    files = tuple(find_file(traces, pattern) for pattern in LOADS[setting.load].patterns)
    return Cell(setting, f"{setting}", partial(play, setting, traces), to_builtins(setting), files)


@dataclass(slots=True)
class _Sent:
    ask: PrefilledRequest
    first_ns: int = -1
    first_step: int = -1


class _World:
    def __init__(self, setting: BalanceCell, load: OrderedLoad, protocol: PlayProtocol) -> None:
        self._setting = setting
        self._protocol = protocol
        self._lease_ns = setting.lease_s * 1_000_000_000
        rng = random.Random(f"{setting.load}/{setting.seed}")
        asks = _drawn(load.later, setting.requests, rng)
        running = 0 if protocol.is_replay else setting.workers * setting.batch
        first = _in_mid_life(load.later, running, rng)
        self._asks = [*first, *asks]
        self._kv_tokens = kv_tokens_of(load.later, setting.batch, protocol.room_share)
        self._came_ns = self._arrivals(len(first), rng)
        self._tally = Tally(setting.keep_steps)
        self._group = DecodeGroup(
            DecodeGroupConfig(setting.workers, setting.batch, setting.base_ns, setting.kv_token_ns, self._kv_tokens),
            self._tally,
        )
        config = DecodeConfig(
            policy=setting.policy,
            bypass=setting.bypass or protocol.sends_at_once,
            in_flight_margin=_UNBOUNDED if protocol.sends_at_once else DecodeConfig().in_flight_margin,
            balance=setting.balance,
            room_margin=setting.room_margin,
            pool_ttl_ns=self._lease_ns,
            considered_max=0,
        )
        told_tokens = 0 if protocol.sends_at_once else self._kv_tokens
        spec = PoolSpec(
            PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, setting.batch + setting.early, told_tokens
        )
        self._foresight = self._predictor(load)
        self._tier = DecodeTier(config, spec, random.Random(setting.seed), self._foresight)
        self._ranks: dict[ReplicaId, int] = {}
        for rank in range(setting.workers):
            worker_id = ReplicaId(f"w{rank:03}")
            self._ranks[worker_id] = rank
            self._tier.join(worker_id, "dp", 0)
        self._next = 0
        self._outside: deque[int] = deque()
        """Numbers of the requests that have arrived but are not yet in the pool."""
        self._sent: dict[RequestId, _Sent] = {}
        self._count_from = len(first) + setting.requests // 4
        """Number of the first counted request, which starts the count: when it is sent in a backlog, otherwise when it
        arrives."""
        self._admitted = self._expired = 0
        self._tpots: list[float] = []
        self._begin_step = 0
        self._end_step: int | None = None
        """Step at which weighing ended; None until then."""
        self._waits: list[int] = []
        self._ran: list[Ran] = []
        if protocol.is_replay:
            self._count()

    def _arrivals(self, first: int, rng: random.Random) -> list[int]:
        """Arrival times: 0 for the requests that run at the start, and for all in a backlog."""
        setting = self._setting
        if setting.offered == BACKLOG:
            return [0] * len(self._asks)
        step_ns = setting.base_ns, setting.kv_token_ns
        full = requests_per_ns(self._asks[first:], setting.workers, setting.batch, self._kv_tokens, step_ns)
        per_ns = setting.offered * full
        came, at_ns = [0] * first, 0.0
        for _ in range(setting.requests):
            at_ns += rng.expovariate(per_ns)
            came.append(int(at_ns))
        return came

    def _predictor(self, load: OrderedLoad) -> ForesightCounter | None:
        if not self._setting.predictor:
            return None
        answers = {_name(number): each.output_tokens for number, each in enumerate(self._asks)}
        return ForesightCounter(self._uncounted(load, answers), answers, self._setting.balance.confidence_min)

    def _uncounted(self, load: OrderedLoad, answers: Mapping[str, int]) -> Predictor:
        setting = self._setting
        if setting.predictor == "oracle":
            return Oracle(answers)
        assert setting.predictor in _FITTED, setting.predictor
        known = load.known()
        arrays: PredictorArrays
        if setting.predictor == "survival":
            arrays = fit_survival(each.output_tokens for each in known)
        else:
            arrays = fit_exact_match(known, PromptKey.PROMPT_OR_LENGTH)
        keys = {_name(number): each.prompt_key for number, each in enumerate(self._asks)}
        predictor = FittedPredictor(setting.balance.horizon_steps, History(len(known), known))
        predictor.take(arrays, _ALWAYS_NS)
        return _Keyed(predictor, keys)

    # Time

    def play(self) -> Figures:
        now_ns = 0
        while self._admitted < len(self._asks) or (self._protocol.is_replay and self._group.alive):
            now_ns = max(now_ns, self._due_ns())
            self._hear(now_ns)
            self._let_in(now_ns)
            self._tick(now_ns)
        return self._figures(now_ns)

    def _due_ns(self) -> int:
        came = self._came_ns[self._next] if self._next < len(self._came_ns) else None
        due = [each for each in (came, self._group.next_change_ns(), self._tier.next_ns()) if each is not None]
        assert due, "requests wait, and no event is due"
        return min(due)

    def _hear(self, now_ns: int) -> None:
        for told in self._group.advance(now_ns):
            key = RequestId(told.request_id)
            match told:
                case Pulled():
                    pass
                case FirstTokenMade():
                    sent = self._sent[key]
                    sent.first_ns, sent.first_step = told.at_ns, self._group.steps - 1
                    self._tier.running(key)
                case Finished():
                    sent = self._sent.pop(key)
                    self._ended(sent, told.at_ns)
                    self._tier.ended(key, now_ns, sent.ask.output_tokens)
                case _:
                    assert_never(told)

    def _ended(self, sent: _Sent, at_ns: int) -> None:
        if self._setting.is_bounded:
            self._ran.append(_ran(sent))
        if self._tally.is_counting and sent.ask.output_tokens > 1:
            self._tpots.append((at_ns - sent.first_ns) / (sent.ask.output_tokens - 1))

    def _let_in(self, now_ns: int) -> None:
        while self._next < len(self._came_ns) and self._came_ns[self._next] <= now_ns:
            self._outside.append(self._next)
            self._next += 1
            if self._setting.offered != BACKLOG and self._next == self._count_from:
                self._count()
            if self._ends_weighing and self._next == len(self._asks):
                self._tally.end_weighing()
                self._end_step = self._group.steps
        for key in self._tier.expired(now_ns):
            self._expired += 1
            self._outside.appendleft(int(key))
        while self._outside and self._tier.has_room(0):
            number = self._outside.popleft()
            facts = Facts(RequestId(_name(number)), self._asks[number].prompt_tokens)
            admission = self._tier.add(facts, now_ns, now_ns + self._lease_ns)
            if admission is not None:
                self._send(admission.key, admission.worker_id, now_ns)

    @property
    def _ends_weighing(self) -> bool:
        """Return whether the last arrival ends the weighing of loads."""
        return self._setting.offered != BACKLOG and not self._protocol.is_replay

    def _tick(self, now_ns: int) -> None:
        if self._tier.wants_progress(now_ns):
            for key, sent in self._sent.items():
                if sent.first_step >= 0:
                    self._tier.progressed(key, self._group.generated(key))
        for admission in self._tier.tick(now_ns):
            if self._tally.is_counting:
                self._waits.append(admission.waited_ns)
            self._send(admission.key, admission.worker_id, now_ns)

    def _send(self, key: RequestId, worker_id: ReplicaId, now_ns: int) -> None:
        setting, ask = self._setting, self._asks[int(key)]
        rank = self._ranks[worker_id]
        self._sent[key] = _Sent(ask)
        transfer_ns = setting.transfer_base_ns + ask.prompt_tokens * setting.transfer_token_ns
        said = self._group.admit(key, rank, ask.prompt_tokens, ask.output_tokens, now_ns, transfer_ns=transfer_ns)
        assert said is None, said
        self._admitted += 1
        if setting.offered == BACKLOG and self._admitted == self._count_from:
            self._count()

    def _count(self) -> None:
        self._tally.begin()
        self._begin_step = self._group.steps

    def _figures(self, now_ns: int) -> Figures:
        setting, tally = self._setting, self._tally
        tier = self._tier.figures(now_ns)
        counted_ns = now_ns - self._came_ns[0] if self._protocol.is_replay else tally.time_ns
        found: Figures = {
            "gap": tally.gap,
            "deficit": tally.deficit,
            "largest": tally.largest,
            "mean": tally.mean,
            "steps": tally.steps,
            "tokens_per_s": tally.tokens / max(1, counted_ns) * 1e9,
            "tpot_p95_ms": _percentile(self._tpots, 0.95) / 1e6,
            "tpot_p50_ms": _percentile(self._tpots, 0.5) / 1e6,
            "running": tally.tokens / max(1, tally.steps),
            "kv_share": 1 - setting.base_ns * tally.weighed / max(1, tally.weighed_ns),
            "wait_mean_ms": fmean(self._waits) / 1e6 if self._waits else 0.0,
            "expired": self._expired,
            "aged": tier.admitted[AdmissionReason.AGED],
            "degraded": tier.ticks_degraded,
        }
        if self._foresight is not None:
            found |= self._foresight.figures(len(self._asks))
        if setting.keep_steps:
            found["loads"] = tally.kept(240)
        if setting.is_bounded:
            found["bound"] = self._bound()
        return found

    def _bound(self) -> float:
        """Lower bound on the gap; requests that still run have their full answer length as their end."""
        setting, last = self._setting, self._end_step or self._group.steps
        running = [sent for sent in self._sent.values() if sent.first_step >= 0]
        ran = [*self._ran, *(_ran(sent) for sent in running)]
        return gap_at_least(ran, self._begin_step, last, workers=setting.workers, batch=setting.batch, lags=_LAGS)


def _ran(sent: _Sent) -> Ran:
    return Ran(sent.ask.prompt_tokens, sent.first_step, sent.first_step + sent.ask.output_tokens)


class _Keyed(Predictor):
    """Fitted predictor with given prompt keys, which a gateway would compute; no gateway is simulated."""

    def __init__(self, fitted: FittedPredictor, keys: dict[str, int]) -> None:
        self._fitted = fitted
        self._keys = keys

    def is_ready(self, now_ns: int) -> bool:
        return self._fitted.is_ready(now_ns)

    def note(self, facts: Facts) -> Noted:
        noted = self._fitted.note(facts)
        features = noted.features
        key = self._keys[facts.request_id]
        return Noted(Features(features.prompt_tokens, key, features.recent), noted.after)

    def estimate(self, ages: Ages, facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        return self._fitted.estimate(ages, facts, horizon)

    def ended(self, facts: Facts, output_tokens: int, now_ns: int) -> None:
        self._fitted.ended(facts, output_tokens, now_ns)


def _name(number: int) -> str:
    return str(number)


def _drawn(asks: Sequence[PrefilledRequest], count: int, rng: random.Random) -> list[PrefilledRequest]:
    """Requests in their recorded order from a random one on, wrapping around at the end."""
    start = rng.randrange(len(asks))
    return [asks[(start + number) % len(asks)] for number in range(count)]


def _in_mid_life(asks: Sequence[PrefilledRequest], count: int, rng: random.Random) -> list[PrefilledRequest]:
    """Requests as found on busy workers at a random moment: longer answers are more likely, and each is at a random
    age. Tokens generated so far count as prompt."""
    found = rng.choices(asks, [each.output_tokens for each in asks], k=count)
    ages = [rng.randrange(each.output_tokens) for each in found]
    return [
        PrefilledRequest(each.prompt_tokens + age, each.output_tokens - age, each.prompt_key)
        for each, age in zip(found, ages, strict=True)
    ]


def _percentile(numbers: Sequence[float], share: float) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
