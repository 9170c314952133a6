from __future__ import annotations

import numpy as np
import pytest

from gateway.features.expert_locality.fit.balanced_kmeans import TooFewPoints, cluster, matched


def points(sizes: list[int], seed: int = 1) -> np.ndarray:
    """Bundles of unit vectors in similar directions, of these sizes."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [np.eye(len(sizes))[at] + rng.normal(0, 0.05, (size, len(sizes))) for at, size in enumerate(sizes)]
    )
    rows = np.abs(rows)
    unit: np.ndarray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def test_no_cluster_has_more_than_its_share_and_vanilla_ones_have() -> None:
    given = points([30, 5, 5])
    centroids, labels = cluster(given, 3)
    assert np.bincount(labels).tolist() == [14, 13, 13] or max(np.bincount(labels)) <= 14
    assert np.linalg.norm(centroids, axis=1) == pytest.approx(1.0, abs=1e-5)
    _, vanilla = cluster(given, 3, is_balanced=False)
    assert max(np.bincount(vanilla)) == 30


def test_bundles_of_equal_size_are_found() -> None:
    _, labels = cluster(points([8, 8, 8, 8]), 4)
    assert sorted(len(set(labels[at : at + 8].tolist())) for at in (0, 8, 16, 24)) == [1, 1, 1, 1]


def test_equal_chance_gives_equal_clusters() -> None:
    given = points([9, 9, 9])
    first, again = (cluster(given, 4, seed=5)[0] for _ in range(2))
    assert (first == again).all()


def test_fewer_points_than_clusters_are_too_few() -> None:
    with pytest.raises(TooFewPoints, match="3 requests are too few for 4 clusters"):
        cluster(points([3]), 4)


def test_duplicates_and_as_many_clusters_as_points_leave_no_cluster_without_a_direction() -> None:
    same = np.repeat(points([1, 1]), 5, axis=0)
    for clusters in (2, 3, 10):
        centroids, labels = cluster(same, clusters)
        assert np.linalg.norm(centroids, axis=1) == pytest.approx(1.0, abs=1e-5)
        assert len(labels) == 10
        assert max(np.bincount(labels)) <= -(-10 // clusters)


def test_new_centroids_stand_where_those_stood_that_they_are_like() -> None:
    old = np.eye(4, dtype=np.float32)
    assert matched(old, old[[2, 0, 3, 1]]).tolist() == [1, 3, 0, 2]
    fewer = matched(old, old[[3, 1]])
    assert sorted(fewer.tolist()) == [0, 1]
    assert fewer[1] == 1, "the second still is the second"
    more = matched(old[:2], old[[3, 1, 0, 2]])
    assert more.tolist()[:2] == [2, 1]
    assert sorted(more.tolist()) == [0, 1, 2, 3]
