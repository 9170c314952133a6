"""Fits ELDR's artifact to a calibration: weights, layers and centroids, and scores the fit on requests of other
documents (§4.2–4.3). The module only computes.

The artifact is fitted to the whole calibration; its scores are those of the same fit without the documents that it is
scored on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.core.features.expert_locality.artifact import EldrArtifact, centroids_of, idf_of
from gateway.features.expert_locality.fit.balanced_kmeans import Labels, cluster, matched
from gateway.features.expert_locality.fit.eldr_calibration import Calibration, UnusableCalibration, by_document
from gateway.features.expert_locality.fit.rank_correlation import choose_layers, draw_pairs, peak_of, rho_of, target_of

OnProgress = Callable[[str], object]
Floats = npt.NDArray[np.float32]


class EldrRules(Struct, frozen=True):
    workers: int
    """Decode workers, and so clusters: K."""
    held_out: float = 0.25
    """Share of the documents that is used for scores alone."""
    seed: int = 0
    is_balanced: bool = True


class EldrScores(Struct, frozen=True):
    """Scores as ρ, on requests of documents that the scored fit does not include."""

    requests: int
    transformations: dict[str, float]
    """ρ by transformation, with all layers (Fig. 7)."""
    masked: float
    """ρ of count-idf, with the chosen layers."""
    by_layers: list[float]
    """ρ with the first one, two, … layers of the chosen order (Fig. 8)."""


@dataclass(frozen=True, slots=True)
class EldrFit:
    artifact: EldrArtifact
    labels: Labels
    points: Floats
    """Signatures of the calibration; `labels` are their clusters."""
    sizes: list[int]
    scores: EldrScores | None
    unscored: str = ""
    """Reason why there are no scores."""
    dropped: int = 0
    """Requests of the calibration whose signature is zero: no expert of any weight was picked in the chosen layers."""
    kept: Calibration | None = field(default=None, repr=False)
    """Calibration without those requests."""


def fit_eldr(
    calibration: Calibration,
    rules: EldrRules,
    on_progress: OnProgress = lambda _: None,
    previous: EldrArtifact | None = None,
) -> EldrFit:
    """Fit an artifact. With `previous`, centroids take the places of its most similar ones; and if that was fitted to
    this calibration, its weights and layers are kept. Raises UnusableCalibration and TooFewPoints."""
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


# Signature


def idf_over(prefill: npt.NDArray[np.uint16]) -> Floats:
    """Weights by layer and expert (step 2): log((|C| + 1) / (df + 1))."""
    fires = (prefill > 0).sum(axis=0)
    idf: Floats = np.log((len(prefill) + 1) / (fires + 1)).astype(np.float32)
    return idf


def signatures(prefill: npt.NDArray[np.uint16], idf: Floats, mask: list[int]) -> Floats:
    """Signatures (steps 2 to 4): unit vectors, or zero where no expert of any weight was picked."""
    weighted = prefill[:, mask, :].astype(np.float32) * idf[mask]
    flat = weighted.reshape(len(prefill), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    directions: Floats = np.divide(flat, lengths, out=np.zeros_like(flat), where=lengths > 0)
    return directions


def transformed(prefill: npt.NDArray[np.uint16], idf: Floats) -> dict[str, Floats]:
    """Discrete transformations of Fig. 7: an engine reports counts, and no probabilities of a gate."""
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
    """Centroids over all layers, with zeros in layers outside of the mask, so that centroids of two masks can be
    compared."""
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
    """Score the weights and layers of one calibration on another, whose documents differ."""
    assert not set(fitted.documents) & set(tested.documents), "no test document is among the fitted ones"
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
