"""K clusters of unit vectors by cosine similarity: K-means with clusters of equal size, by the Hungarian method (ELDR
§4.3.1), and plain K-means to compare it with. The module only computes, and its random numbers are seeded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.intp]
_ROUNDS_MAX = 40
_STARTS = 2


class TooFewPoints(ValueError):
    """Fewer points than clusters; the message says how many."""


def cluster(
    points: Floats,
    clusters: int,
    *,
    is_balanced: bool = True,
    seed: int = 0,
    on_progress: Callable[[str], object] = lambda _: None,
) -> tuple[Floats, Labels]:
    """Return unit centroids and each point's cluster: the better of two starts. Balanced, no cluster has more than
    ⌈N/K⌉ points. Raises TooFewPoints."""
    if clusters < 1 or len(points) < clusters:
        raise TooFewPoints(f"{len(points)} requests are too few for {clusters} clusters: it takes one for each")
    best: tuple[float, Floats, Labels] | None = None
    for start in range(_STARTS):
        rng = np.random.default_rng((seed, start))
        centroids, labels = _descend(points, _spread(points, clusters, rng), is_balanced, on_progress)
        closeness = float((points * centroids[labels]).sum())
        if best is None or closeness > best[0]:
            best = closeness, centroids, labels
    assert best is not None, "it starts at least once"
    return best[1], best[2]


def _spread(points: Floats, clusters: int, rng: np.random.Generator) -> Floats:
    """Initial centroids by k-means++: each next point is likelier the farther it is from those chosen before."""
    chosen = [int(rng.integers(len(points)))]
    far = np.maximum(1.0 - points @ points[chosen[0]], 0.0).astype(np.float64)
    while len(chosen) < clusters:
        far[chosen] = 0.0
        total = far.sum()
        if total > 0:
            chosen.append(int(rng.choice(len(points), p=far / total)))
        else:  # the points left are duplicates
            chosen.append(next(index for index in range(len(points)) if index not in chosen))
        far = np.minimum(far, np.maximum(1.0 - points @ points[chosen[-1]], 0.0))
    return points[chosen].copy()


def _descend(
    points: Floats, centroids: Floats, is_balanced: bool, on_progress: Callable[[str], object]
) -> tuple[Floats, Labels]:
    labels = np.full(len(points), -1, np.intp)
    for round_ in range(_ROUNDS_MAX):
        on_progress(f"clustering: round {round_ + 1}")
        cosines = points @ centroids.T
        found = _balanced(cosines) if is_balanced else cosines.argmax(axis=1)
        if (found == labels).all():
            break
        labels = found
        centroids = _means(points, labels, centroids)
    return centroids, labels


def _balanced(cosines: Floats) -> Labels:
    """Assignment of least total distance, where each cluster has ⌈N/K⌉ places."""
    points, clusters = cosines.shape
    places = -(-points // clusters)
    rows, columns = linear_sum_assignment(np.repeat(cosines, places, axis=1), maximize=True)
    assert len(rows) == points, "there is a place for each"
    labels: Labels = columns // places
    return labels


def _means(points: Floats, labels: Labels, before: Floats) -> Floats:
    """Directions of the clusters' means. An empty cluster takes the point that is farthest from its own centroid, out
    of the clusters with more than one point."""
    means = np.zeros_like(before)
    np.add.at(means, labels, points)
    sizes = np.bincount(labels, minlength=len(before))
    for empty in np.flatnonzero(sizes == 0):
        lonely = np.where(sizes[labels] > 1, (points * before[labels]).sum(axis=1), np.inf)
        farthest = int(lonely.argmin())
        sizes[labels[farthest]] -= 1
        means[labels[farthest]] -= points[farthest]
        labels[farthest] = empty
        sizes[empty] = 1
        means[empty] = points[farthest]
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    directions: Floats = np.divide(means, lengths, out=before.copy(), where=lengths > 0)
    return directions


def matched(old: Floats, new: Floats) -> Labels:
    """Order of the new centroids that puts each, as far as there is a place, where the old centroid most similar to it
    stood."""
    rows, columns = linear_sum_assignment(old[: len(new)] @ new.T, maximize=True)
    order = np.full(len(new), -1, np.intp)
    order[rows] = columns
    rest = [index for index in range(len(new)) if index not in set(columns.tolist())]
    order[order < 0] = rest
    return order
