"""Correlation of one distance with another: Spearman's ρ over pairs of requests (ELDR, Eq. 1), and the layers that give
the highest, chosen greedily (§4.2.2). Distances are those of cosines, whose sums are kept by layer, so that each step
of the choice adds one layer to the sums of the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ranks = npt.NDArray[np.float64]
Pairs = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]

PAIRS_MAX = 10_000


def draw_pairs(requests: int, seed: int, pairs_max: int = PAIRS_MAX) -> Pairs:
    """Pairs of different requests: `pairs_max` of them at random, or all where there are no more."""
    first, second = np.triu_indices(requests, 1)
    if len(first) > pairs_max:
        chosen = np.random.default_rng(seed).choice(len(first), pairs_max, replace=False)
        chosen.sort()
        first, second = first[chosen], second[chosen]
    return first, second


def centred_ranks(values: npt.NDArray[np.floating]) -> Ranks:
    """Ranks around 0, shared by equal values, and scaled to length 1, so that ρ is an inner product."""
    count = len(values)
    order = np.argsort(values)  # equal ones in any order: they share a rank
    ordered = values[order]
    is_new = np.empty(count, np.bool_)
    is_new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    starts = np.flatnonzero(is_new)
    counts = np.diff(starts, append=count)
    shared = starts + (counts - 1) / 2 - (count - 1) / 2
    ranks = np.empty(count)
    ranks[order] = shared if len(starts) == count else np.repeat(shared, counts)
    length = np.sqrt(float(shared * shared @ counts))
    return ranks / length if length > 0 else ranks


def layer_products(vectors: Floats, pairs: Pairs) -> tuple[Floats, Floats]:
    """Inner product of each pair and square of each request, by layer, of vectors [requests, layers, experts]."""
    requests, layers, _ = vectors.shape
    products = np.empty((layers, len(pairs[0])), np.float32)
    squares = np.empty((layers, requests), np.float32)
    for layer in range(layers):
        rows = vectors[:, layer, :]
        gram = rows @ rows.T
        products[layer] = gram[pairs]
        squares[layer] = np.diagonal(gram)
    return products, squares


def distances(products: Floats, squares: Floats, pairs: Pairs) -> Floats:
    """1 − cosine of each pair, of products and squares summed over layers. A vector of length 0 has distance 1 from all
    others."""
    lengths = np.sqrt(squares)
    scale = lengths[pairs[0]] * lengths[pairs[1]]
    cosines = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    apart: Floats = 1.0 - cosines
    return apart


def rho_of(vectors: Floats, target: Ranks, pairs: Pairs) -> float:
    """ρ of vectors with all layers. `target` are the ranks of the distances to predict."""
    products, squares = layer_products(vectors, pairs)
    return float(centred_ranks(distances(products.sum(axis=0), squares.sum(axis=0), pairs)) @ target)


def target_of(decode: Floats, pairs: Pairs) -> Ranks:
    """Ranks of the distances between requests, by the experts picked while they decode."""
    products, squares = layer_products(decode, pairs)
    return centred_ranks(distances(products.sum(axis=0), squares.sum(axis=0), pairs))


def choose_layers(
    vectors: Floats, target: Ranks, pairs: Pairs, on_progress: Callable[[str], object] = lambda _: None
) -> tuple[list[int], list[float]]:
    """All layers in the order in which each adds most, and ρ with the first one, two, … of them."""
    products, squares = layer_products(vectors, pairs)
    left = list(range(len(products)))
    product_sum, square_sum = np.zeros_like(products[0]), np.zeros_like(squares[0])
    order: list[int] = []
    curve: list[float] = []
    while left:
        on_progress(f"choosing layers: {len(order)} of {len(products)}")
        rhos = [
            float(centred_ranks(distances(product_sum + products[layer], square_sum + squares[layer], pairs)) @ target)
            for layer in left
        ]
        best = int(np.argmax(rhos))
        layer = left.pop(best)
        product_sum += products[layer]
        square_sum += squares[layer]
        order.append(layer)
        curve.append(rhos[best])
    return order, curve


def peak_of(curve: list[float]) -> int:
    """Number of layers N* at which ρ is highest; of equal ones, the fewest."""
    return int(np.argmax(curve)) + 1
