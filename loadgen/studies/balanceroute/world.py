"""Simulates the production decode tier without a gateway, in front of a modelled group of workers that step behind one
barrier. Requests arrive with their prefill complete; requests without room wait before that, as in production.

It plays one setting until all of its requests were sent, and counts tokens and time until then; loads are weighed while
requests arrive. Time is virtual, chance is seeded: equal settings give equal figures.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import assert_never

from msgspec import to_builtins

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.config import BalanceConfig, DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays, PromptKey
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
from loadgen.studies.balanceroute.loads import LOADS, OrderedLoad, PrefilledRequest, asked
from loadgen.studies.balanceroute.tally import Tally
from loadgen.studies.cells import Cell
from loadgen.studies.oracle import Oracle
from loadgen.studies.recordings import find_file

BACKLOG = 0.0
"""Value of `offered` for a standing backlog: as much load as fits at any time."""
_ALWAYS_NS = 1 << 62
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


def play(setting: BalanceCell, traces: Path | None) -> Figures:
    """Figures of the setting. Raises TraceError."""
    return _World(setting, asked(LOADS[setting.load], traces)).play()


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
    def __init__(self, setting: BalanceCell, load: OrderedLoad) -> None:
        self._setting = setting
        self._lease_ns = setting.lease_s * 1_000_000_000
        rng = random.Random(f"{setting.load}/{setting.seed}")
        asks = _drawn(load.later, setting.requests, rng)
        first = _in_mid_life(load.later, setting.workers * setting.batch, rng)
        self._asks = [*first, *asks]
        self._came_ns = self._arrivals(len(first), rng)
        self._tally = Tally(setting.keep_steps)
        self._group = DecodeGroup(
            DecodeGroupConfig(setting.workers, setting.batch, setting.base_ns, setting.kv_token_ns), self._tally
        )
        config = DecodeConfig(
            policy=setting.policy,
            bypass=setting.bypass,
            balance=setting.balance,
            room_margin=setting.room_margin,
            pool_ttl_ns=self._lease_ns,
            considered_max=0,
        )
        spec = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, setting.batch + setting.early)
        self._tier = DecodeTier(config, spec, random.Random(setting.seed), self._predictor(load))
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

    def _arrivals(self, first: int, rng: random.Random) -> list[int]:
        """Arrival times: 0 for the requests that run at the start, and for all in a backlog."""
        setting = self._setting
        if setting.offered == BACKLOG:
            return [0] * len(self._asks)
        per_ns = setting.offered * _capacity(self._asks[first:], setting)
        came, at_ns = [0] * first, 0.0
        for _ in range(setting.requests):
            at_ns += rng.expovariate(per_ns)
            came.append(int(at_ns))
        return came

    def _predictor(self, load: OrderedLoad) -> Predictor | None:
        setting = self._setting
        if setting.predictor == "oracle":
            return Oracle({_name(number): each.output_tokens for number, each in enumerate(self._asks)})
        if not setting.predictor:
            return None
        assert setting.predictor in _FITTED, setting.predictor
        known = load.known()
        arrays: PredictorArrays
        if setting.predictor == "survival":
            arrays = fit_survival(each.output_tokens for each in known)
        else:
            arrays = fit_exact_match(known, PromptKey.PROMPT_OR_LENGTH)
        keys = {_name(number): each.prompt_key for number, each in enumerate(self._asks)}
        predictor = _Keyed(setting.balance.horizon_steps, History(len(known), known), keys)
        predictor.take(arrays, _ALWAYS_NS)
        return predictor

    # Time

    def play(self) -> Figures:
        now_ns = 0
        while self._admitted < len(self._asks):
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
            if self._setting.offered != BACKLOG and self._next == len(self._asks):
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
        found: Figures = {
            "gap": tally.gap,
            "deficit": tally.deficit,
            "largest": tally.largest,
            "mean": tally.mean,
            "steps": tally.steps,
            "tokens_per_s": tally.tokens / max(1, tally.time_ns) * 1e9,
            "tpot_p95_ms": _percentile(self._tpots, 0.95) / 1e6,
            "tpot_p50_ms": _percentile(self._tpots, 0.5) / 1e6,
            "running": tally.tokens / max(1, tally.steps),
            "kv_share": 1 - setting.base_ns * tally.weighed / max(1, tally.weighed_ns),
            "wait_mean_ms": fmean(self._waits) / 1e6 if self._waits else 0.0,
            "expired": self._expired,
            "aged": tier.admitted[AdmissionReason.AGED],
            "degraded": tier.ticks_degraded,
        }
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


class _Keyed(FittedPredictor):
    """Fitted predictor with given prompt keys, which a gateway would compute; no gateway is simulated."""

    def __init__(self, horizon: int, history: History, keys: dict[str, int]) -> None:
        super().__init__(horizon, history)
        self._keys = keys

    def note(self, facts: Facts) -> Noted:
        noted = super().note(facts)
        return replace(noted, features=replace(noted.features, prompt_key=self._keys[facts.request_id]))


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


def _capacity(asks: Sequence[PrefilledRequest], setting: BalanceCell) -> float:
    """Requests per nanosecond of workers that are always full and equally loaded."""
    output = fmean(each.output_tokens for each in asks)
    held = fmean(each.output_tokens * (each.prompt_tokens + each.output_tokens / 2) for each in asks) / output
    step_ns = setting.base_ns + setting.kv_token_ns * setting.batch * held
    return setting.workers * setting.batch / (step_ns * output)


def _percentile(numbers: Sequence[float], share: float) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
