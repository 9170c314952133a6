"""Represents request lengths: pairs of prompt and answer tokens, each with its weight. It draws and counts; it reads no
file and plans nothing."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

SHAPES_MAX = 20_000
"""Maximum number of shapes; a larger recorded load is sampled at equal steps."""


class RequestShape(NamedTuple):
    """Tokens that one request asks of an engine."""

    prompt_tokens: int
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class WeightedShapes:
    """Shapes in order of total tokens, each with a weight that need not be a whole number."""

    shapes: Sequence[RequestShape]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        assert len(self.shapes) == len(self.weights) > 0, "a weight for each shape, and at least one of them"
        assert all(each.prompt_tokens > 0 and each.output_tokens > 0 for each in self.shapes), "nothing is empty"
        assert all(weight > 0 for weight in self.weights), "what never comes is no shape"

    @cached_property
    def _up_to(self) -> list[float]:
        """Cumulative weights."""
        return list(accumulate(self.weights))

    @cached_property
    def _totals(self) -> list[int]:
        return [each.total_tokens for each in self.shapes]

    @property
    def weight(self) -> float:
        return self._up_to[-1]

    @property
    def total_tokens_max(self) -> int:
        return self._totals[-1]

    def share_up_to(self, total_tokens: int) -> float:
        """F: share of all requests with at most `total_tokens`."""
        count = bisect_right(self._totals, total_tokens)
        return self._up_to[count - 1] / self.weight if count else 0.0

    def cut(self, total_tokens: int) -> tuple[WeightedShapes | None, WeightedShapes | None]:
        """Requests up to `total_tokens`, and those above; None for an empty part."""
        count = bisect_right(self._totals, total_tokens)
        return self._part(0, count), self._part(count, len(self.shapes))

    def _part(self, start: int, end: int) -> WeightedShapes | None:
        return WeightedShapes(self.shapes[start:end], self.weights[start:end]) if start < end else None

    def mean(self, of: Callable[[RequestShape], float]) -> float:
        return sum(of(shape) * weight for shape, weight in zip(self.shapes, self.weights, strict=True)) / self.weight

    def quantile(self, share: float) -> int:
        """Total tokens that this share of the requests does not exceed."""
        place = bisect_right(self._up_to, share * self.weight)
        return self._totals[min(place, len(self._totals) - 1)]

    def draw(self, rng: random.Random) -> RequestShape:
        place = bisect_right(self._up_to, rng.random() * self.weight)
        return self.shapes[min(place, len(self.shapes) - 1)]


def lengths_of(weighted: Iterable[tuple[RequestShape, float]]) -> WeightedShapes:
    """Lengths from weighted shapes in any order; equal shapes are merged. Raises ValueError without a usable shape."""
    together: dict[RequestShape, float] = {}
    for shape, weight in weighted:
        if shape.prompt_tokens > 0 and shape.output_tokens > 0 and weight > 0:
            together[shape] = together.get(shape, 0.0) + weight
    if not together:
        raise ValueError("no request has a prompt and an answer")
    ordered = sorted(together.items(), key=lambda each: (each[0].total_tokens, each[0]))
    return WeightedShapes([shape for shape, _ in ordered], [weight for _, weight in ordered])


def recorded(shapes: Sequence[RequestShape]) -> WeightedShapes:
    """Lengths of recorded requests, each once; very many are sampled evenly. Raises ValueError where none can be
    used."""
    step = -(-len(shapes) // SHAPES_MAX) or 1
    return lengths_of((shape, 1.0) for shape in shapes[::step])


class LengthStep(NamedTuple):
    """Share of all requests whose total lies above the step before and up to `tokens`."""

    tokens: float
    share: float


def from_steps(
    steps: Sequence[LengthStep], output_share: tuple[float, float], *, seed: int, draws: int
) -> WeightedShapes:
    """Totals uniform within each step from the one before (the first from 1), and for each an answer whose share is
    drawn from a normal distribution (mean, deviation) and kept within 2 and 95 %: token-budget paper, Appendix A.

    Draws are spread evenly over each step and over that distribution, so that few draws suffice.
    """
    rng = random.Random(f"{seed}/lengths")
    answer_shares = NormalDist(*output_share)
    found: list[tuple[RequestShape, float]] = []
    low = 1.0
    for high, share in steps:
        count = max(1, round(draws * share))
        places = [(number + 0.5) / count for number in range(count)]
        rng.shuffle(places)
        for number, place in enumerate(places if share > 0 else []):
            total = max(2, round(low + (high - low) * (number + 0.5) / count))
            answer_share = min(0.95, max(0.02, answer_shares.inv_cdf(place)))
            answer = min(total - 1, max(1, round(total * answer_share)))
            found.append((RequestShape(total - answer, answer), share / count))
        low = high
    return lengths_of(found)


def paired(
    prompts: Callable[[float], float], answers: Callable[[float], float], *, seed: int, draws: int
) -> WeightedShapes:
    """Lengths from two quantile functions, drawn independently, for sources that have only the marginals."""
    rng = random.Random(f"{seed}/paired")
    places = [(number + 0.5) / draws for number in range(draws)]
    others = places[:]
    rng.shuffle(others)
    return lengths_of(
        (RequestShape(max(1, round(prompts(one))), max(1, round(answers(other)))), 1.0)
        for one, other in zip(places, others, strict=True)
    )


def quantiles_of(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Quantile function of a cumulative curve of (value, share up to it) in order, linear between its points."""
    values, shares = [value for value, _ in points], [share for _, share in points]

    def at(share: float) -> float:
        place = bisect_right(shares, share)
        if place == 0:
            return values[0]
        if place == len(shares):
            return values[-1]
        span = shares[place] - shares[place - 1]
        return values[place - 1] + (values[place] - values[place - 1]) * (share - shares[place - 1]) / span

    return at
