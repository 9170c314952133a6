"""Fits boosted trees with scikit-learn, and extracts them as plain arrays. No code that serves requests imports this.

The arrays come from the attributes that ONNX's and treelite's converters read too, which scikit-learn does not promise
to keep. So its version is pinned, and a test compares the arrays with the library's own answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.arrays import ForestArrays, LearnedArrays
from gateway.core.features.disaggregated.predictors.learned import FEATURES, feature_rows
from gateway.features.disaggregated.samples import PredictionSamples


class TooLittle(ValueError):
    """History that no tree can be fitted to; the message says why."""


class TreeRules(Struct, frozen=True):
    """Number and size of the trees."""

    trees: int = 100
    leaves_max: int = 16
    depth_max: int = 6
    learning_rate: float = 0.1
    leaf_questions_min: int = 50
    seed: int = 0

    def as_arguments(self) -> dict[str, object]:
        return {
            "max_iter": self.trees,
            "max_leaf_nodes": self.leaves_max,
            "max_depth": self.depth_max,
            "learning_rate": self.learning_rate,
            "min_samples_leaf": self.leaf_questions_min,
            "early_stopping": False,
            "random_state": self.seed,
        }


class FittedTrees(Struct, frozen=True):
    """Arrays, and the library's own models to compare them with."""

    arrays: LearnedArrays
    classifier: Any
    regressor: Any


_USUAL = TreeRules()


def fit_trees(questions: PredictionSamples, horizon: int, rules: TreeRules = _USUAL) -> FittedTrees:
    """Fit a classifier with cross-entropy over all of the questions, and a regressor with squared error over those
    whose request left within the horizon. Raises TooLittle. Runs in one thread: on a busy machine several only wait for
    each other."""
    leaves = questions.leaves(horizon)
    if leaves.all() or not leaves.any():
        kind = "every" if len(leaves) and leaves.all() else "no"
        raise TooLittle(f"{kind} request leaves within {horizon} tokens of any age: there is nothing to tell apart")
    rows = feature_rows(questions.ages, questions.features)
    arguments = rules.as_arguments()
    with threadpool_limits(limits=1):
        classifier = HistGradientBoostingClassifier(**arguments).fit(rows, leaves)
        regressor = HistGradientBoostingRegressor(**arguments).fit(rows[leaves], questions.remaining[leaves])
    arrays = LearnedArrays(horizon, FEATURES, forest_of(classifier), forest_of(regressor))
    return FittedTrees(arrays, classifier, regressor)


def forest_of(model: Any) -> ForestArrays:
    """Arrays of a model with one output."""
    trees: list[Any] = [predictor.nodes for (predictor,) in model._predictors]  # noqa: SLF001
    baseline = float(np.asarray(model._baseline_prediction).item())  # noqa: SLF001
    starts = np.cumsum([0, *(len(nodes) for nodes in trees)])
    columns = [_columns(nodes, int(start)) for nodes, start in zip(trees, starts, strict=False)]
    feature, threshold, left, right, value = (np.concatenate(column).tolist() for column in zip(*columns, strict=True))
    return ForestArrays(
        baseline,
        tuple(starts[:-1].tolist()),
        tuple(feature),
        tuple(threshold),
        tuple(left),
        tuple(right),
        tuple(value),
    )


def _columns(nodes: Any, start: int) -> tuple[Any, ...]:
    """Columns of one tree, whose first node has the index `start` among all. Leaves point to themselves, and their
    unused fields are 0."""
    assert not nodes["is_categorical"].any(), "features are numbers"
    is_leaf = nodes["is_leaf"].astype(bool)
    own = np.arange(len(nodes)) + start
    return (
        np.where(is_leaf, 0, nodes["feature_idx"]),
        np.where(is_leaf, 0.0, nodes["num_threshold"]),
        np.where(is_leaf, own, nodes["left"].astype(np.int64) + start),
        np.where(is_leaf, own, nodes["right"].astype(np.int64) + start),
        np.where(is_leaf, nodes["value"], 0.0),
    )


def library_answers(fitted: FittedTrees, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Probability and remaining tokens, as the library itself predicts them."""
    with threadpool_limits(limits=1):
        return fitted.classifier.predict_proba(rows)[:, 1], fitted.regressor.predict(rows)
