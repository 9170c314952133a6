"""Placement of experts on the ranks of a decode worker that shards them, so that each rank reads about as many in a
step (ELDR §5, after METRO: by how often they are active, not by tokens). Each rank holds equally many experts; the
module only computes.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ranks = npt.NDArray[np.uint16]


class UnevenRanks(ValueError):
    """Experts that cannot be divided equally; the message says how many."""


def place_experts(activity: Floats, ranks: int) -> Ranks:
    """Place experts by their activity [layers, experts]: the next most active expert of a layer goes to the rank with
    the least activity that has room. Raises UnevenRanks."""
    layers, experts = activity.shape
    if ranks < 1 or experts % ranks:
        raise UnevenRanks(f"{experts} experts cannot be shared out equally among {ranks} ranks")
    room = experts // ranks
    placed = np.zeros((layers, experts), np.uint16)
    for layer in range(layers):
        loads: list[tuple[float, int, int]] = [(0.0, rank, room) for rank in range(ranks)]
        for expert in np.argsort(-activity[layer], kind="stable").tolist():
            load, rank, left = heapq.heappop(loads)
            placed[layer, expert] = rank
            if left > 1:
                heapq.heappush(loads, (load + float(activity[layer, expert]), rank, left - 1))
    return placed


def place_by_cluster(decode: Floats, labels: npt.NDArray[np.intp], clusters: int, ranks: int) -> Ranks:
    """Place experts for each cluster by what its members' answers picked: [clusters, layers, experts]. An empty cluster
    is placed by all answers."""
    overall = decode.mean(axis=0)
    activity = [decode[labels == each].mean(axis=0) if (labels == each).any() else overall for each in range(clusters)]
    return np.stack([place_experts(each, ranks) for each in activity])
