"""Fits the generator's spreads to recorded routing, before anything is routed (`nightside results eldr --fit`).

Each spread is fitted to one figure of the recording's calibration half: the inequality of experts, and the distances
between domains, between answers of one domain, and between a prompt and its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from loadgen.studies.eldr.generator import Generator, ModelShape, Spread, with_domains
from loadgen.studies.eldr.requests import Requests
from loadgen.studies.eldr.unions import fewer_in_one_domain

_ROUNDS = 20
_STEP = 0.7
_START = Spread(0.5, 0.8, 0.4, 0.4)
_PAIRS = 400


def figures_of(requests: Requests) -> dict[str, float]:
    """Means over layers. Distances are total variation between shares of picks."""
    prompts = _shares(requests.prefill.astype(np.float64))
    answers = _shares(requests.decode.astype(np.float64))
    names = sorted(set(requests.domains))
    at = {name: [index for index, each in enumerate(requests.domains) if each == name] for name in names}
    means = np.stack([answers[at[name]].mean(axis=0) for name in names])
    rng = np.random.default_rng(0)
    within = []
    for name in names:
        pairs = [
            pair for pair in combinations(at[name], 2) if requests.documents[pair[0]] != requests.documents[pair[1]]
        ]
        chosen = rng.permutation(len(pairs))[:_PAIRS]
        within += [_apart(answers[pairs[index][0]], answers[pairs[index][1]]) for index in chosen]
    overall = means.mean(axis=0)
    return {
        "experts": float((overall.std(axis=-1) / overall.mean(axis=-1)).mean()),
        "domains": float(np.mean([_apart(means[one], means[two]) for one, two in combinations(range(len(names)), 2)])),
        "requests": float(np.mean(within)),
        "phases": float(np.mean([_apart(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)])),
    }


def fit_spread(recorded: Requests, picks: int, on_progress: Callable[[str], object] = lambda _: None) -> Spread:
    """Spread of a synthetic model with the recording's shape, requests per domain and prompt lengths."""
    wanted = figures_of(recorded)
    shape = ModelShape(recorded.shape.layers, recorded.shape.experts, picks)
    spread = _START
    for round_ in range(_ROUNDS):
        on_progress(f"fitting the generator: round {round_ + 1} of {_ROUNDS}")
        found = figures_of(as_recorded(Generator(shape, spread, 7), recorded))
        spread = Spread(
            spread.experts * (wanted["experts"] / found["experts"]) ** _STEP,
            spread.domains * (wanted["domains"] / found["domains"]) ** _STEP,
            spread.requests * (wanted["requests"] / found["requests"]) ** (2 * _STEP),
            spread.phases * (wanted["phases"] / found["phases"]) ** (2 * _STEP),
        )
    return spread


def as_recorded(generator: Generator, recorded: Requests) -> Requests:
    """Synthetic requests of the same domains and prompt lengths as the recording, with answers sampled as sparsely."""
    parts = []
    rng = np.random.default_rng(3)
    for number, name in enumerate(sorted(set(recorded.domains))):
        at = [index for index, each in enumerate(recorded.domains) if each == name]
        tokens = np.array([recorded.prompt_tokens[index] for index in at], np.int64)
        drawn = generator.draw({name: 1.0}, len(at), number, tokens=tokens)
        answered = rng.binomial(tokens[:, None, None], drawn.decode) / tokens[:, None, None]
        parts.append(replace(drawn, decode=answered.astype(np.float32)))
    return Requests(
        tuple(document for part in parts for document in part.documents),
        tuple(domain for part in parts for domain in part.domains),
        np.concatenate([part.prefill for part in parts]),
        np.concatenate([part.decode for part in parts]),
        tuple(tokens_ for part in parts for tokens_ in part.prompt_tokens),
    )


def fit_domains(shape: ModelShape, spread: Spread, shares: dict[str, float], wanted: float) -> Spread:
    """Spread with the distance between domains at which batches of one domain have this share fewer experts than mixed
    ones."""
    low, high = 0.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        drawn = Generator(shape, with_domains(spread, middle), 7).draw(shares, 400, 5)
        if fewer_in_one_domain(drawn) < wanted:
            low = middle
        else:
            high = middle
    return with_domains(spread, (low + high) / 2)


def _shares(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shares: npt.NDArray[np.float64] = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-12)
    return shares


def _apart(one: npt.NDArray[np.float64], two: npt.NDArray[np.float64]) -> float:
    return float(np.abs(one - two).sum(axis=-1).mean() / 2)
