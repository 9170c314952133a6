from __future__ import annotations

import numpy as np
import pytest

from gateway.features.expert_locality.fit.expert_placement import UnevenRanks, place_by_cluster, place_experts


def load(placed: np.ndarray, activity: np.ndarray, ranks: int) -> list[float]:
    return [float(activity[placed == rank].sum()) for rank in range(ranks)]


def test_the_next_most_active_goes_to_the_least_loaded_rank_that_has_room() -> None:
    activity = np.array([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]], np.float32)
    placed = place_experts(activity, 2)
    assert placed[0].tolist() == [0, 1, 1, 0, 0, 1]
    assert load(placed, activity, 2) == [8.0, 7.0]


def test_every_rank_has_as_many_experts_and_loads_are_evener_than_in_a_row() -> None:
    rng = np.random.default_rng(1)
    activity = rng.gamma(0.3, 1.0, (6, 32)).astype(np.float32)
    placed = place_experts(activity, 4)
    in_a_row = np.repeat(np.arange(4), 8)
    for layer in range(6):
        assert np.bincount(placed[layer]).tolist() == [8, 8, 8, 8]
        assert max(load(placed[layer], activity[layer], 4)) <= max(load(in_a_row, activity[layer], 4)) + 1e-5


def test_each_cluster_is_placed_by_what_its_own_requests_pick() -> None:
    decode = np.zeros((4, 1, 4), np.float32)
    decode[:2, 0, :2] = 1.0
    decode[2:, 0, 2:] = 1.0
    placed = place_by_cluster(decode, np.array([0, 0, 1, 1]), 3, 2)
    assert placed.shape == (3, 1, 4)
    assert len(set(placed[0, 0, :2].tolist())) == 2, "its two busy ones are apart"
    assert len(set(placed[1, 0, 2:].tolist())) == 2


def test_experts_that_cannot_be_shared_out_equally_are_refused() -> None:
    with pytest.raises(UnevenRanks, match=r"12 experts .* 5 ranks"):
        place_experts(np.ones((1, 12), np.float32), 5)
