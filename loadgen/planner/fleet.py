"""Computes by formula how many instances a load needs: the token-budget paper's closed form, its corrected fleet
formula (Eq. 8) and its service times (Appendix A). Arithmetic only; `verified.py` simulates the result.

The formulas use means. They model queueing only by a headroom factor, and do not model an engine's shared prefill
budget: see `PlannedWork`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from loadgen.planner.lengths import RequestShape, WeightedShapes
from loadgen.planner.profiles import Profile

HEADROOM = {"all": 1.08, "short": 1.05, "long": 1.02}
"""β of Appendix A, by pool: room for queueing."""
DEVIATIONS = 3.0
"""Standard deviations above the mean of the sequences' joint KV cache use for which paged slots leave room."""
_SECOND_NS = 1e9


class SeatCounting(StrEnum):
    """Method of counting the sequences that an instance runs at once."""

    RESERVED = "reserved"
    """Number of whole windows that fit into the KV cache (Eq. 2), so that no request is ever preempted. The paper's
    method."""
    PAGED = "paged"
    """Number of sequences whose likely KV cache use fits: a sequence takes blocks as it grows, as in vLLM."""


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """Work of a mean request on an engine, and its use of the KV cache."""

    iterations: float
    """Iterations that the request takes part in: one per chunk of its prompt and per token of its answer."""
    prompt_tokens: float
    held_tokens: float
    """KV cache tokens held, averaged over the time in the batch."""
    held_deviation: float


def work_of(lengths: WeightedShapes, chunk_tokens: int) -> PlannedWork:
    def iterations(shape: RequestShape) -> float:
        return -(-shape.prompt_tokens // chunk_tokens) + shape.output_tokens

    mean_iterations = lengths.mean(iterations)
    held = lengths.mean(lambda each: iterations(each) * _held(each)) / mean_iterations
    square = lengths.mean(lambda each: iterations(each) * _held_square(each)) / mean_iterations
    return PlannedWork(
        mean_iterations, lengths.mean(lambda each: each.prompt_tokens), held, math.sqrt(max(0.0, square - held**2))
    )


def _held(shape: RequestShape) -> float:
    return shape.prompt_tokens + shape.output_tokens / 2


def _held_square(shape: RequestShape) -> float:
    """Mean square of the tokens held, which grow evenly from the prompt to the total."""
    low, high = shape.prompt_tokens, shape.total_tokens
    return (low * low + low * high + high * high) / 3


def slots_of(profile: Profile, context_tokens: int, work: PlannedWork, seats: SeatCounting) -> int:
    """Slots of an instance; 0 where not even one window fits."""
    reserved = profile.slots_at(context_tokens)
    if seats is SeatCounting.RESERVED or reserved == 0:
        return reserved
    room = profile.kv_tokens
    spread, held = DEVIATIONS * work.held_deviation, work.held_tokens
    root = (math.sqrt(spread**2 + 4 * held * room) - spread) / (2 * held)
    return min(profile.sequences_max, max(reserved, int(root * root)))


def throughput(profile: Profile, slots: int, work: PlannedWork) -> float:
    """μ: requests per second of one instance whose slots are all taken. With a prefill cost of zero per token it is n /
    E[S] of Appendix A."""
    if slots == 0:
        return 0.0
    cost = profile.cost
    iteration_ns = cost.base_ns + cost.sequence_ns * slots
    busy_ns = work.iterations * iteration_ns + slots * cost.prefill_token_ns * work.prompt_tokens
    return slots / busy_ns * _SECOND_NS


@dataclass(frozen=True, slots=True)
class PoolSize:
    """One pool by formula."""

    name: str
    """`all`, `short` or `long`."""
    context_tokens: int
    slots: int
    share: float
    """Share of all requests."""
    rate_per_s: float
    throughput_per_s: float
    """Throughput μ of an instance with all slots taken."""
    instances: int | None
    """Number of instances; None if not even one request of this window fits into an instance."""


@dataclass(frozen=True, slots=True)
class SplitSize:
    """Two pools by formula."""

    threshold_tokens: int
    short: PoolSize
    long: PoolSize
    gain: float | None
    """ρ: the short pool's throughput per instance over that of an instance for all requests."""

    @property
    def closed_form(self) -> float | None:
        """Eq. 7: savings if the long pool were as fast as one for all requests."""
        return None if self.gain is None else closed_form(self.short.share, self.gain)

    @property
    def instances(self) -> int | None:
        """Eq. 8, with headroom."""
        if self.short.instances is None or self.long.instances is None:
            return None
        return self.short.instances + self.long.instances


def closed_form(share: float, gain: float) -> float:
    """Share of instances saved: α · (1 − 1/ρ)."""
    return share * (1 - 1 / gain) if gain else 0.0


@dataclass(frozen=True, slots=True)
class Sizing:
    """A load on a profile, and the method of counting its instances' slots."""

    profile: Profile
    lengths: WeightedShapes
    rate_per_s: float
    seats: SeatCounting

    def homogeneous(self) -> PoolSize:
        return self._pool("all", self.profile.context_tokens_max, self.lengths, 1.0)

    def split(self, threshold_tokens: int) -> SplitSize:
        """Two pools; the short pool's window is the threshold."""
        short_lengths, long_lengths = self.lengths.cut(threshold_tokens)
        share = self.lengths.share_up_to(threshold_tokens)
        short = self._pool("short", threshold_tokens, short_lengths, share)
        long = self._pool("long", self.profile.context_tokens_max, long_lengths, 1 - share)
        overall = self.homogeneous().throughput_per_s
        gain = short.throughput_per_s / overall if overall and short.throughput_per_s else None
        return SplitSize(threshold_tokens, short, long, gain)

    def _pool(self, name: str, context_tokens: int, lengths: WeightedShapes | None, share: float) -> PoolSize:
        """Size of the pool for these lengths; `lengths` is None for a pool without requests."""
        if lengths is None:
            return PoolSize(name, context_tokens, self.profile.slots_at(context_tokens), 0.0, 0.0, 0.0, 0)
        work = work_of(lengths, self.profile.prefill_chunk_tokens)
        slots = slots_of(self.profile, context_tokens, work, self.seats)
        per_instance, rate_per_s = throughput(self.profile, slots, work), self.rate_per_s * share
        instances = math.ceil(rate_per_s / per_instance * HEADROOM[name] - 1e-9) if per_instance else None
        return PoolSize(name, context_tokens, slots, share, rate_per_s, per_instance, instances)


def savings(instances: int | None, of: int | None) -> float | None:
    """Share of instances saved; None where one of the two numbers is unavailable."""
    return None if instances is None or not of else 1 - instances / of


def thresholds_below(context_tokens: int, least: int = 1_024) -> list[int]:
    """Powers of two that leave requests to the long pool."""
    return [2**power for power in range(least.bit_length() - 1, 25) if 2**power < context_tokens]


def fewest(sizes: Iterable[tuple[int, int | None]]) -> int | None:
    """The threshold with the fewest instances, of equal ones the smallest; None where no threshold has a number."""
    possible = [(instances, threshold) for threshold, instances in sizes if instances is not None]
    return min(possible)[1] if possible else None
