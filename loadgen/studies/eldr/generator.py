"""Generates requests of models without recorded routing: each layer's experts are more or less popular, by domain and
by request; prompt and answer of a request have odds that differ by domain alone. Chance is seeded.

`AS_RECORDED` holds the spreads fitted to the recorded routing (`fit_generator.py`) before anything was routed by them.
`AS_PUBLISHED` differs only in the distance between domains, chosen so that batches of one domain have as many fewer
experts than mixed ones as in ELDR's Fig. 4; it was set before anything was routed, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from loadgen.studies.eldr.requests import Requests

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of an expert's log-odds of being picked, by source of the variation."""

    experts: float
    """Variation between experts of a layer, common to all requests."""
    domains: float
    requests: float
    """Variation between requests of a domain. It includes the correlation between tokens, which are drawn independently
    here."""
    phases: float
    """Variation between a domain's prompts and its answers."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    layers: int
    experts: int
    picks: int


QWEN3_30B = ModelShape(48, 128, 8)
"""Qwen3-30B-A3B, of ELDR's main results."""
_CHUNK = 64
_HALVINGS = 18
_PROMPT_MEDIAN, _PROMPT_SIGMA = 300, 0.7
_PROMPT_MIN, _PROMPT_MAX = 32, 2048


class Generator:
    """One synthetic model, whose domains are drawn independently when first used."""

    def __init__(self, shape: ModelShape, spread: Spread, seed: int) -> None:
        self.shape = shape
        self._spread = spread
        self._seed = seed
        size = shape.layers, shape.experts
        self._common = np.random.default_rng((seed, 0)).normal(0.0, spread.experts, size)

    def odds_of(self, domain: str) -> npt.NDArray[np.float64]:
        return self._common + self._spread.domains * self._drawn_for(domain, 0)

    def _drawn_for(self, domain: str, what: int) -> npt.NDArray[np.float64]:
        chance = np.random.default_rng((self._seed, what, *domain.encode()))
        return chance.standard_normal((self.shape.layers, self.shape.experts))

    def draw(
        self, shares: Mapping[str, float], count: int, seed: int, *, tokens: npt.NDArray[np.int64] | None = None
    ) -> Requests:
        """Draw requests, each a document of its own, with domains by their shares. `tokens` are the prompt lengths;
        drawn log-normally, if not given."""
        rng = np.random.default_rng((self._seed, seed, 1))
        names = list(shares)
        weights = np.array([shares[name] for name in names])
        drawn = rng.choice(len(names), count, p=weights / weights.sum())
        if tokens is None:
            lengths = rng.lognormal(np.log(_PROMPT_MEDIAN), _PROMPT_SIGMA, count)
            tokens = np.clip(lengths, _PROMPT_MIN, _PROMPT_MAX).astype(np.int64)
        odds = np.stack([self.odds_of(name) for name in names])
        shifts = np.stack([self._spread.phases * self._drawn_for(name, 1) for name in names])
        size = count, self.shape.layers, self.shape.experts
        prefill, decode = np.empty(size, np.uint16), np.empty(size, np.float32)
        for start in range(0, count, _CHUNK):
            part = slice(start, min(start + _CHUNK, count))
            own = rng.normal(0.0, self._spread.requests, (part.stop - part.start, *size[1:]))
            own += odds[drawn[part]]
            decode[part] = pick_probabilities(own, self.shape.picks)
            prompts = pick_probabilities(own + shifts[drawn[part]], self.shape.picks)
            prefill[part] = rng.binomial(tokens[part][:, None, None], prompts)
        documents = tuple(f"{seed}/{number}" for number in range(count))
        domains = tuple(names[index] for index in drawn)
        return Requests(documents, domains, prefill, decode, tuple(tokens.tolist()))


def pick_probabilities(odds: npt.NDArray[np.float64], picks: int) -> Floats:
    """Probability that each expert is among the `picks` of its layer: 1 − exp(−λ·e^odds), with λ of each layer chosen
    so that the expected number of picks is right."""
    weights = np.exp(odds - odds.max(axis=-1, keepdims=True))
    low = np.full(odds.shape[:-1], -5.0)
    high = np.full(odds.shape[:-1], 20.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        total = -np.expm1(-np.exp(middle)[..., None] * weights).sum(axis=-1)
        is_short = total < picks
        low = np.where(is_short, middle, low)
        high = np.where(is_short, high, middle)
    found: Floats = (-np.expm1(-np.exp((low + high) / 2)[..., None] * weights)).astype(np.float32)
    return found


def with_domains(spread: Spread, domains: float) -> Spread:
    return replace(spread, domains=domains)
