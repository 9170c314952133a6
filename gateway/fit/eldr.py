"""Fits ELDR's artifact to a calibration: weights, layers and centroids, and how good they are on requests of other
documents (§4.2–4.3). It only computes.

What is handed out is fitted to all of the calibration; what is scored is the same fit without the documents that it is
scored on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gateway.core.decode.locality.artifact import EldrArtifact, centroids_of, idf_of
from gateway.fit.balanced_kmeans import Labels, cluster, matched
from gateway.fit.eldr_calibration import Calibration, UnusableCalibration, by_document
from gateway.fit.rank_correlation import choose_layers, draw_pairs, peak_of, rho_of, target_of

OnProgress = Callable[[str], object]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EldrRules:
    workers: int
    """K."""
    held_out: float = 0.25
    """Of documents, for scores alone."""
    seed: int = 0
    is_balanced: bool = True


@dataclass(frozen=True, slots=True)
class EldrScores:
    """ρ, on requests of documents that nothing was fitted to."""

    requests: int
    transformations: dict[str, float]
    """With all layers: Fig. 7."""
    masked: float
    """count-idf, with the chosen layers."""
    by_layers: list[float]
    """With the first one, two, … of the order that was chosen: Fig. 8."""


@dataclass(frozen=True, slots=True)
class EldrFit:
    artifact: EldrArtifact
    labels: Labels
    points: Floats
    """Signatures of the calibration, whose clusters `labels` are."""
    sizes: list[int]
    scores: EldrScores | None
    unscored: str = ""
    """Why there are none."""
    dropped: int = 0
    """Requests of the calibration that say nothing: no expert of a layer that counts was picked."""
    kept: Calibration | None = field(default=None, repr=False)
    """The calibration without those."""


def fit_eldr(
    calibration: Calibration,
    rules: EldrRules,
    on_progress: OnProgress = lambda _: None,
    previous: EldrArtifact | None = None,
) -> EldrFit:
    """With `previous`, centroids stand where its most similar ones stood; and if that was fitted to this calibration,
    only they are new. Raises UnusableCalibration and TooFewPoints."""
    digest = calibration.digest
    if previous is not None and previous.calibration == digest:
        idf, mask, curve = _idf_in(previous), list(previous.mask), list(previous.rho)
    else:
        idf = idf_over(calibration.prefill)
        mask, curve = _layers(calibration, idf, rules.seed, on_progress)
    points = signatures(calibration.prefill, idf, mask)
    says = np.linalg.norm(points, axis=1) > 0
    if not says.any():
        raise UnusableCalibration("no request of the calibration tells any two experts apart")
    kept = calibration if says.all() else calibration.only(np.flatnonzero(says).tolist())
    points = points[says]
    centroids, labels = cluster(
        points, rules.workers, is_balanced=rules.is_balanced, seed=rules.seed, on_progress=on_progress
    )
    if previous is not None:
        order = _order(previous, centroids, mask, calibration)
        centroids, labels = centroids[order], np.argsort(order)[labels]
    artifact = EldrArtifact(
        calibration.shape,
        tuple(mask),
        idf.astype("<f4").tobytes(),
        rules.workers,
        centroids.astype("<f4").tobytes(),
        digest,
        tuple(round(each, 6) for each in curve),
    )
    scores, unscored = _scores(calibration, rules, on_progress)
    sizes = np.bincount(labels, minlength=rules.workers).tolist()
    return EldrFit(artifact, labels, points, sizes, scores, unscored, int((~says).sum()), kept)


# The signature


def idf_over(prefill: npt.NDArray[np.uint16]) -> Floats:
    """Step 2: log((|C| + 1) / (df + 1)), by layer and expert."""
    fires = (prefill > 0).sum(axis=0)
    idf: Floats = np.log((len(prefill) + 1) / (fires + 1)).astype(np.float32)
    return idf


def signatures(prefill: npt.NDArray[np.uint16], idf: Floats, mask: list[int]) -> Floats:
    """Steps 2 to 4: unit vectors, or zero where nothing of it was picked."""
    weighted = prefill[:, mask, :].astype(np.float32) * idf[mask]
    flat = weighted.reshape(len(prefill), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    directions: Floats = np.divide(flat, lengths, out=np.zeros_like(flat), where=lengths > 0)
    return directions


def transformed(prefill: npt.NDArray[np.uint16], idf: Floats) -> dict[str, Floats]:
    """The discrete ones of Fig. 7: what an engine tells is counts, and no gate's probabilities."""
    counts = prefill.astype(np.float32)
    return {
        "count": counts,
        "count-idf": counts * idf,
        "sqrt": np.sqrt(counts),
        "binary": (counts > 0).astype(np.float32),
    }


# Parts


def _layers(calibration: Calibration, idf: Floats, seed: int, on_progress: OnProgress) -> tuple[list[int], list[float]]:
    if len(calibration) < 2:
        raise UnusableCalibration("of one request alone nothing can be learned")
    pairs = draw_pairs(len(calibration), seed)
    target = target_of(calibration.decode, pairs)
    order, curve = choose_layers(calibration.prefill.astype(np.float32) * idf, target, pairs, on_progress)
    return order[: peak_of(curve)], curve


def _idf_in(artifact: EldrArtifact) -> Floats:
    idf_of(artifact)
    return np.frombuffer(artifact.idf, "<f4").reshape(artifact.shape.layers, artifact.shape.experts).astype(np.float32)


def _order(previous: EldrArtifact, centroids: Floats, mask: list[int], calibration: Calibration) -> Labels:
    shape = calibration.shape
    if (previous.shape.layers, previous.shape.experts) != (shape.layers, shape.experts):
        return np.arange(len(centroids))
    old = _spread_out(centroids_of(previous), list(previous.mask), shape.layers)
    return matched(old, _spread_out(centroids, mask, shape.layers))


def _spread_out(centroids: Floats, mask: list[int], layers: int) -> Floats:
    """Over all layers, with nothing in those that do not count: so those of two masks can be compared."""
    whole = np.zeros((len(centroids), layers, centroids.shape[1] // len(mask)), np.float32)
    whole[:, mask, :] = centroids.reshape(len(centroids), len(mask), -1)
    return whole.reshape(len(centroids), -1)


def _scores(calibration: Calibration, rules: EldrRules, on_progress: OnProgress) -> tuple[EldrScores | None, str]:
    if not rules.held_out:
        return None, "nothing was held out"
    fitted, tested = by_document(calibration, rules.held_out)
    if len(tested) < 3 or len(fitted) < 2:
        return None, "too few documents to hold any out"
    return score_eldr(fitted, tested, rules.seed, on_progress), ""


def score_eldr(
    fitted: Calibration, tested: Calibration, seed: int = 0, on_progress: OnProgress = lambda _: None
) -> EldrScores:
    """Weights and layers of the one, on the other. Their documents differ."""
    assert not set(fitted.documents) & set(tested.documents), "whoever is tested with was never seen"
    idf = idf_over(fitted.prefill)
    pairs = draw_pairs(len(fitted), seed)
    weighted = fitted.prefill.astype(np.float32) * idf
    order, curve = choose_layers(weighted, target_of(fitted.decode, pairs), pairs, on_progress)
    pairs = draw_pairs(len(tested), seed)
    target = target_of(tested.decode, pairs)
    vectors = transformed(tested.prefill, idf)
    by_layers = [rho_of(vectors["count-idf"][:, order[:count]], target, pairs) for count in range(1, len(order) + 1)]
    transformations = {name: rho_of(each, target, pairs) for name, each in vectors.items()}
    return EldrScores(len(tested), transformations, by_layers[peak_of(curve) - 1], by_layers)
