"""Compares a threshold that tunes itself with fixed thresholds, on two small pools of modelled engines in virtual time,
by the number of requests served within the objectives.

Requests are estimated and learnt from as a gateway does (`gateway/core/features/lengths/token_budget.py`), and the
threshold is the gateway's own (`gateway/core/features/lengths/threshold.py`). No other part of a gateway is simulated:
a request goes to the engine of its pool with the fewest requests, or to the other pool if all engines of its own have a
queue and the other has room.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.core.features.lengths.config import ThresholdConfig, TokenBudgetConfig
from gateway.core.features.lengths.threshold import Move, Threshold, Trouble
from gateway.core.features.lengths.token_budget import TokenBudget
from gateway.core.vocabulary import Category, ModelName, RequestId, RequestProfile, TenantName
from loadgen.engine.model import EngineConfig, EngineModel
from loadgen.engine.sequences import EngineRequest
from loadgen.figures import Figures
from loadgen.planner.cited import LLAMA_3_70B_A100
from loadgen.planner.fleet import SeatCounting, Sizing
from loadgen.planner.lengths import RequestShape, recorded
from loadgen.studies.token_budget.engines import Engines, Running
from loadgen.studies.token_budget.paper import LOADS
from loadgen.studies.token_budget.workloads import EARLIER_SHARE, WORKLOADS

GRID = (1_024, 2_048, 4_096, 8_192, 16_384)
"""Fixed thresholds; the self-tuning one starts at 8,192."""
HOME, WINDOW = 8_192, 16_384
"""Initial threshold, and the short pool's window, which is twice that."""
CONDITIONS = ("steady", "drift", "burst")
SEEDS = (1, 2)
TTFT_S, TPOT_MS = 5.0, 80.0
_REQUESTS, _QUICK = 3_000, 60
_WARM_UP_SHARE = 0.2
_INSTANCES = 4
"""Instances of the short pool; the long one has as many as its share of the work needs."""
_LOAD_SHARE = 0.8
"""Load, as a share of the capacity of both pools by formula at the initial threshold."""
_SECOND_NS, _MS_NS = 1_000_000_000, 1_000_000
_BYTES_A_TOKEN = 4.2
_LIMITED_SHARE = 0.5
"""Share of clients that name a maximum for the answer, twice its actual length."""
_SHORT, _LONG = 0, 1


@dataclass(frozen=True, slots=True)
class TuningCell:
    load: str
    condition: str
    threshold: int
    """Threshold in tokens; 0 for one that tunes itself."""
    seed: int
    quick: bool = False


CONFIG = ThresholdConfig(tuned=True, requests_min=100)


@dataclass(frozen=True, slots=True)
class TimedRequest:
    at_ns: int
    shape: RequestShape


@dataclass(slots=True)
class _Asked(Running):
    ask: TimedRequest
    profile: RequestProfile
    pool: int
    is_counted: bool
    is_cut: bool = False
    was_refused: bool = False


@dataclass(slots=True)
class _Score:
    counted: int = 0
    good: int = 0
    troubles: dict[str, int] = field(default_factory=dict)
    ttft_ns: list[int] = field(default_factory=list)
    in_short: int = 0

    def add(self, asked: _Asked, ended_ns: int) -> None:
        if not asked.is_counted:
            return
        self.counted += 1
        self.in_short += asked.pool == _SHORT
        ttft_ns = asked.first_ns - asked.ask.at_ns
        self.ttft_ns.append(ttft_ns)
        tpot_ns = (ended_ns - asked.first_ns) / max(1, asked.ask.shape.output_tokens - 1)
        is_late = ttft_ns > TTFT_S * _SECOND_NS or tpot_ns > TPOT_MS * _MS_NS
        for name, is_so in (("preempted", asked.preempted), ("cut", asked.is_cut), ("refused", asked.was_refused),
                            ("late", is_late)):  # fmt: skip
            self.troubles[name] = self.troubles.get(name, 0) + is_so
        self.good += not (is_late or asked.is_cut)


class TuningWorld(Engines[_Asked]):
    """Two pools, and a gateway's estimates of lengths."""

    def __init__(
        self, engines: tuple[EngineConfig, EngineConfig], counts: tuple[int, int], setting: TuningCell
    ) -> None:
        super().__init__(
            [[EngineModel(engine) for _ in range(count)] for engine, count in zip(engines, counts, strict=True)]
        )
        self._windows = tuple(each.context_tokens_max for each in engines)
        home = setting.threshold or min(HOME, self._windows[_SHORT])
        self.threshold = Threshold(CONFIG, home, self._windows[_SHORT], 0)
        self._is_tuned = setting.threshold == 0
        self._budget = TokenBudget(TokenBudgetConfig())
        self._rng = random.Random(f"{setting.seed}/world")
        self.score = _Score()

    def ask(self, number: int, ask: TimedRequest, *, is_counted: bool) -> None:
        self.run_until(ask.at_ns)
        profile = self._profile(number, ask.shape)
        estimate = self._budget.estimate(profile)
        pool = self._pool_for(estimate.total_tokens)
        asked = _Asked(ask, profile, pool, is_counted)
        if pool == _SHORT and self._exceeds(asked, self._windows[_SHORT]):
            asked.was_refused, asked.pool = True, _LONG
            self.threshold.ended(in_short=True, trouble=Trouble.MISROUTED)
        self._submit(asked, number)

    def run_until(self, now_ns: int) -> None:
        super().run_until(now_ns)
        if self._is_tuned:
            self.threshold.adjust(now_ns)

    # Parts

    def _profile(self, number: int, shape: RequestShape) -> RequestProfile:
        """Profile of a request. Half of all clients name a maximum; the bytes per token vary by a tenth or so."""
        text_bytes = max(1, round(shape.prompt_tokens * max(1.0, self._rng.gauss(_BYTES_A_TOKEN, 0.4))))
        limit = 2 * shape.output_tokens if self._rng.random() < _LIMITED_SHARE else None
        return RequestProfile(
            RequestId(f"{number}"), ModelName("m"), TenantName("t"), text_bytes, b"", 64, "s", stream=True,
            output_tokens_max=limit, category=Category.PROSE, text_bytes=text_bytes,
        )  # fmt: skip

    def _pool_for(self, tokens: int) -> int:
        wanted = _SHORT if tokens <= self.threshold.tokens else _LONG
        other = _LONG if wanted == _SHORT else _SHORT
        fits = other == _LONG or tokens <= self._windows[_SHORT]
        return other if fits and self._is_overloaded(wanted) and self._has_room(other) else wanted

    def _is_overloaded(self, pool: int) -> bool:
        return all(engine.occupancy()[1] for engine, _ in self.groups[pool])

    def _has_room(self, pool: int) -> bool:
        return any(
            running < engine.config.sequences_max and not waiting
            for engine, _ in self.groups[pool]
            for running, waiting, _ in (engine.occupancy(),)
        )

    @staticmethod
    def _exceeds(asked: _Asked, window: int) -> bool:
        """True if the engine refuses the request: prompt and named maximum together, or the prompt alone, exceed the
        window."""
        prompt, limit = asked.ask.shape.prompt_tokens, asked.profile.output_tokens_max
        return prompt + (limit or 1) > window

    def _submit(self, asked: _Asked, number: int) -> None:
        shape, window = asked.ask.shape, self._windows[asked.pool]
        answer = min(shape.output_tokens, window - shape.prompt_tokens)
        asked.is_cut = answer < shape.output_tokens
        request = EngineRequest(f"{number}", shape.prompt_tokens, max(1, answer))
        self.submit(asked.pool, asked, request, asked.ask.at_ns)

    def ended(self, request: _Asked, ended_ns: int) -> None:
        asked = request
        self.score.add(asked, ended_ns)
        shape = asked.ask.shape
        self._budget.observe(asked.profile, shape.prompt_tokens, shape.output_tokens, asked.is_cut)
        trouble = Trouble.PREEMPTED if asked.preempted else Trouble.MISROUTED if asked.is_cut else None
        in_short = asked.pool == _SHORT
        self.threshold.ended(
            in_short=in_short,
            trouble=trouble if in_short else None,
            first_token_after_ns=asked.first_ns - asked.ask.at_ns,
        )


def play(setting: TuningCell, traces: Path | None) -> Figures:
    """Figures of a setting. Raises TraceError."""
    earlier, later, window = _shapes(setting, traces)
    engines, counts, rate_per_s = _fleet(earlier, window)
    world = TuningWorld(engines, counts, setting)
    requests = _QUICK if setting.quick else _REQUESTS
    for number, ask in enumerate(_asks(later, setting, rate_per_s, requests)):
        world.ask(number, ask, is_counted=number >= requests * _WARM_UP_SHARE)
    world.run_out()
    score, threshold = world.score, world.threshold
    ordered = sorted(score.ttft_ns)
    return {
        "good_share": score.good / score.counted,
        "ttft_p99_s": ordered[int(0.99 * (len(ordered) - 1))] / _SECOND_NS,
        "short_share": score.in_short / score.counted,
        "troubles": {name: count / score.counted for name, count in score.troubles.items()},
        "moves": {str(move): threshold.moves[move] for move in Move},
        "last_threshold": threshold.tokens,
        "instances": list(counts),
    }


def _shapes(setting: TuningCell, traces: Path | None) -> tuple[list[RequestShape], list[RequestShape], int]:
    """Requests by which the fleet is sized, requests that are played, and the long pool's window."""
    if setting.load in WORKLOADS:
        assert traces is not None, "recorded loads lie somewhere"
        workload = WORKLOADS[setting.load]
        shapes, window = workload.shapes(traces), max(4 * HOME, workload.context_tokens)
    else:
        paper = next(each for each in LOADS if each.name == setting.load)
        lengths, rng = paper.lengths(), random.Random("paper")
        shapes, window = [lengths.draw(rng) for _ in range(6_000)], LLAMA_3_70B_A100.context_tokens_max
    shapes = [each for each in shapes if each.total_tokens + each.output_tokens <= window]
    cut = int(len(shapes) * EARLIER_SHARE)
    return shapes[:cut], shapes[cut:], window


def _fleet(
    earlier: Sequence[RequestShape], window: int
) -> tuple[tuple[EngineConfig, EngineConfig], tuple[int, int], float]:
    """Fleet of quarter engines (slots and cache), so that few requests fill them; sized at the initial threshold, by
    the earlier requests."""
    profile = replace(
        LLAMA_3_70B_A100, context_tokens_max=window, kv_blocks=65_536 // 4, sequences_max=32, slots={WINDOW: 32}
    )
    sizing = Sizing(profile, recorded(earlier), 1.0, SeatCounting.PAGED)
    split = sizing.split(HOME)
    short_rate = _INSTANCES * split.short.throughput_per_s / max(split.short.share, 1e-9)
    rate_per_s = _LOAD_SHARE * short_rate
    need = split.long.share * short_rate / split.long.throughput_per_s if split.long.throughput_per_s else 0.0
    long_count = max(1, round(need))
    engines = profile.engine(WINDOW, 32), profile.engine(window, max(1, split.long.slots or 4))
    return engines, (_INSTANCES, long_count), rate_per_s


def _asks(
    later: Sequence[RequestShape], setting: TuningCell, rate_per_s: float, requests: int
) -> Iterator[TimedRequest]:
    """Arrivals. Steady: in recorded order. Drift: from the middle on, a fifth of all requests is taken from the longest
    fifth, in addition to those already there. Burst: the same between 50 and 65 % of the requests, which arrive twice
    as fast."""
    rng = random.Random(f"{setting.seed}/{setting.load}/{setting.condition}")
    middle = sorted(each.total_tokens for each in later)[int(0.8 * len(later))]
    longer = [each for each in later if each.total_tokens > middle]
    start = rng.randrange(len(later))
    at_s = 0.0
    for number in range(requests):
        part = number / requests
        is_burst = setting.condition == "burst" and 0.5 <= part < 0.65
        at_s += rng.expovariate(rate_per_s * (2.0 if is_burst else 1.0))
        shape = later[(start + number) % len(later)]
        if (is_burst or (setting.condition == "drift" and part >= 0.5)) and rng.random() < 0.2:
            shape = rng.choice(longer)
        yield TimedRequest(round(at_s * _SECOND_NS), shape)
