from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from gateway.features.expert_locality.fit.rank_correlation import (
    centred_ranks,
    choose_layers,
    distances,
    draw_pairs,
    layer_products,
    peak_of,
    rho_of,
    target_of,
)

RNG = np.random.default_rng(3)
VECTORS = RNG.gamma(0.4, 1.0, (20, 5, 6)).astype(np.float32)
DECODE = (VECTORS + RNG.gamma(0.4, 1.0, VECTORS.shape)).astype(np.float32)
PAIRS = draw_pairs(20, seed=0)


def cosine_distances(vectors: np.ndarray) -> np.ndarray:
    flat = vectors.reshape(len(vectors), -1).astype(np.float64)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    apart: np.ndarray = 1.0 - (flat[PAIRS[0]] * flat[PAIRS[1]]).sum(axis=1)
    return apart


def test_ranks_are_shared_by_equals_as_scipy_has_it() -> None:
    values = np.array([3.0, 1.0, 3.0, 2.0, 1.0, 1.0])
    ranks = centred_ranks(values)
    expected = rankdata(values) - rankdata(values).mean()
    assert ranks == pytest.approx(expected / np.linalg.norm(expected))
    assert (centred_ranks(np.ones(4)) == 0).all(), "equals say nothing"


def test_rho_is_spearmans_of_cosine_distances() -> None:
    expected = spearmanr(cosine_distances(VECTORS), cosine_distances(DECODE)).statistic
    assert rho_of(VECTORS, target_of(DECODE, PAIRS), PAIRS) == pytest.approx(expected, abs=1e-6)


def test_layers_are_chosen_as_if_each_choice_were_worked_out_anew() -> None:
    """Sums built up layer by layer equal those computed from all layers at once."""
    target = target_of(DECODE, PAIRS)
    order, curve = choose_layers(VECTORS, target, PAIRS)
    chosen: list[int] = []
    for rho in curve:
        left = [layer for layer in range(5) if layer not in chosen]
        rhos = {layer: rho_of(VECTORS[:, [*chosen, layer]], target, PAIRS) for layer in left}
        best = max(rhos, key=lambda layer: rhos[layer])
        assert order[len(chosen)] == best
        assert rho == pytest.approx(rhos[best], abs=1e-6)
        chosen.append(best)
    assert curve[peak_of(curve) - 1] == max(curve)


def test_pairs_are_all_there_are_or_a_draw_that_a_seed_repeats() -> None:
    assert len(PAIRS[0]) == 190
    first, again = (draw_pairs(50, seed=4, pairs_max=100) for _ in range(2))
    assert len(set(zip(*map(np.ndarray.tolist, first), strict=True))) == 100
    assert (first[0] == again[0]).all()
    assert (first[0] < first[1]).all()


def test_who_has_no_length_is_far_from_everybody() -> None:
    vectors = VECTORS.copy()
    vectors[0] = 0
    products, squares = layer_products(vectors, PAIRS)
    apart = distances(products.sum(axis=0), squares.sum(axis=0), PAIRS)
    assert (apart[PAIRS[0] == 0] == 1.0).all()
