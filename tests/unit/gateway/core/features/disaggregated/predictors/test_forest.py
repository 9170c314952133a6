from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.core.features.disaggregated.predictors.arrays import DEPTH_MAX, ForestArrays, UnusableArrays
from gateway.core.features.disaggregated.predictors.forest import Forest

# Two trees: (x0 ≤ 5 → 1, else (x1 ≤ 2 → 10, else 100)), and a single leaf.
TREES = ForestArrays(
    baseline=0.5,
    roots=(0, 5),
    feature=(0, 0, 1, 0, 0, 0),
    threshold=(5.0, 0.0, 2.0, 0.0, 0.0, 0.0),
    left=(1, 1, 3, 3, 4, 5),
    right=(2, 1, 4, 3, 4, 5),
    value=(0.0, 1.0, 0.0, 10.0, 100.0, 1000.0),
)


def test_each_row_takes_its_own_way_and_gets_the_sum_of_its_leaves() -> None:
    rows = np.array([[5.0, 9.0], [5.1, 2.0], [6.0, 2.1]])
    assert Forest(TREES, 2, "trees").evaluate(rows).tolist() == [1001.5, 1010.5, 1100.5]
    assert Forest(TREES, 2, "trees").evaluate(rows[:0]).tolist() == []


def chain(depth: int) -> ForestArrays:
    """Tree of this depth in which each left child is a leaf."""
    nodes = 2 * depth + 1
    left = [node + 1 if node % 2 == 0 and node < nodes - 1 else node for node in range(nodes)]
    right = [node + 2 if node % 2 == 0 and node < nodes - 1 else node for node in range(nodes)]
    zeros = (0.0,) * nodes
    return ForestArrays(0.0, (0,), (0,) * nodes, zeros, tuple(left), tuple(right), zeros)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        (replace(TREES, value=()), "nodes"),
        (replace(TREES, feature=(0,)), "nodes"),
        (replace(TREES, roots=()), "roots"),
        (replace(TREES, roots=(6,)), "roots"),
        (replace(TREES, feature=(0, 0, 2, 0, 0, 0)), "there are 2 features"),
        (replace(TREES, feature=(-1, 0, 1, 0, 0, 0)), "there are 2 features"),
        (replace(TREES, baseline=math.nan), "finite"),
        (replace(TREES, value=(0.0, math.inf, 0.0, 0.0, 0.0, 0.0)), "finite"),
        (replace(TREES, left=(0, 1, 3, 3, 4, 5)), "node 0 has children"),
        (replace(TREES, right=(2, 1, 0, 3, 4, 5)), "node 2 has children"),
        (replace(TREES, right=(6, 1, 4, 3, 4, 5)), "node 0 has children"),
        (chain(DEPTH_MAX + 1), "deeper"),
    ],
)
def test_arrays_that_no_walk_ends_in_are_refused_in_words(arrays: ForestArrays, problem: str) -> None:
    Forest(chain(DEPTH_MAX), 1, "trees")
    with pytest.raises(UnusableArrays, match=f"^trees.*{problem}"):
        Forest(arrays, 2, "trees")
