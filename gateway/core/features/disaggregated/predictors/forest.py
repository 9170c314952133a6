"""Boosted trees as plain arrays, evaluated by NumPy for many rows at once. No learning, no library.

Every walk ends: children come after their parents, and a leaf points to itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.predictors.arrays import (
    DEPTH_MAX,
    NODES_MAX,
    TREES_MAX,
    ForestArrays,
    UnusableArrays,
)


class Forest:
    """Forest of boosted trees. Raises UnusableArrays for invalid arrays, with `name` in the message."""

    def __init__(self, arrays: ForestArrays, features: int, name: str) -> None:
        self._depth = _checked_depth(arrays, features, name)
        self._baseline = arrays.baseline
        self._roots = np.array(arrays.roots, np.intp)
        self._feature = np.array(arrays.feature, np.intp)
        self._threshold = np.array(arrays.threshold, np.float64)
        self._children = np.array((arrays.right, arrays.left), np.intp).T.ravel()
        """Right child, then left child, of each node."""
        self._value = np.array(arrays.value, np.float64)

    def evaluate(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sum over all trees, for each row of finite features."""
        count, features = rows.shape
        cells = np.ascontiguousarray(rows).ravel()
        first_cell = (np.arange(count) * features)[:, np.newaxis]
        at = np.broadcast_to(self._roots, (count, len(self._roots)))
        for _ in range(self._depth):
            seen = cells.take(self._feature.take(at) + first_cell)
            at = self._children.take(2 * at + (seen <= self._threshold.take(at)))
        return np.asarray(self._baseline + self._value.take(at).sum(axis=1), np.float64)


def _checked_depth(arrays: ForestArrays, features: int, name: str) -> int:
    """Length of the longest walk, after checking the arrays."""
    nodes = len(arrays.value)
    columns = (arrays.feature, arrays.threshold, arrays.left, arrays.right)
    if any(len(column) != nodes for column in columns) or not 0 < nodes <= NODES_MAX:
        raise UnusableArrays(f"{name}: should have between 1 and {NODES_MAX} nodes, each in every array")
    if not 0 < len(arrays.roots) <= TREES_MAX or not all(0 <= root < nodes for root in arrays.roots):
        raise UnusableArrays(f"{name}.roots: should be between 1 and {TREES_MAX} nodes")
    if not all(0 <= feature < features for feature in arrays.feature):
        raise UnusableArrays(f"{name}.feature: there are {features} features")
    if not all(map(math.isfinite, (arrays.baseline, *arrays.threshold, *arrays.value))):
        raise UnusableArrays(f"{name}: holds what is no finite number")
    depths = _depths(arrays.left, arrays.right, name)
    depth = max(depths[root] for root in arrays.roots)
    if depth > DEPTH_MAX:
        raise UnusableArrays(f"{name}: a tree is deeper than {DEPTH_MAX}")
    return depth


def _depths(left: Sequence[int], right: Sequence[int], name: str) -> list[int]:
    """Steps from each node down to the deepest leaf below it."""
    depths = [0] * len(left)
    for node in range(len(left) - 1, -1, -1):
        children = (left[node], right[node])
        if children == (node, node):
            continue
        if not all(node < child < len(left) for child in children):
            raise UnusableArrays(f"{name}: node {node} has children {children}, which do not lie behind it")
        depths[node] = 1 + max(depths[child] for child in children)
    return depths
