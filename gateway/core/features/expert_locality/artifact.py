"""ELDR artifact, fitted offline and used online: the layers that count, the weight of each expert, and a centroid for
each decode worker (ELDR §4.2–4.3). Plain arrays, checked before use; no part of them is executed."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.core.nearness import CLUSTERS_MAX

LAYERS_MAX = 1024
EXPERTS_MAX = 4096
CELLS_MAX = 1 << 18
"""Bound of layers × experts, also for the counts that an engine reports."""
MODEL_LENGTH_MAX = 128
_CENTROID_CELLS_MAX = 1 << 21
_LENGTH_TOLERANCE = 1e-3

Floats = npt.NDArray[np.float32]


class UnusableArtifact(ValueError):
    """Arrays that signatures cannot be compared with; the message gives the reason."""


class MoeShape(Struct, frozen=True):
    """Shape of a model's mixture of experts."""

    layers: int
    experts: int
    """Experts per layer."""
    model: str = ""
    """Fingerprint of the model, as the counting engine states it; empty: any model of this shape."""


class EldrArtifact(Struct, frozen=True):
    """Fitted arrays, packed little-endian, row by row."""

    shape: MoeShape
    mask: tuple[int, ...]
    """Layers that count, in the order in which they were chosen."""
    idf: bytes
    """IDF weight of each expert: float32 [layers, experts]."""
    clusters: int
    """Number of clusters K: the pool's decode workers, or groups of them that share their experts."""
    centroids: bytes
    """Unit-length centroids: float32 [clusters, masked layers × experts]."""
    calibration: str = ""
    """Digest of the calibration data."""
    rho: tuple[float, ...] = ()
    """Cumulative ρ by number of layers kept, in the order of the greedy selection; for information."""


def digest_of(artifact: EldrArtifact) -> str:
    """Digest over the parts that affect comparison; equal for artifacts that compare alike."""
    shape = artifact.shape
    told = f"{shape.layers}/{shape.experts}/{shape.model}/{artifact.mask}/{artifact.clusters}/"
    hashed = hashlib.blake2b(told.encode(), digest_size=16, person=b"nightside-eldr")
    hashed.update(artifact.idf)
    hashed.update(artifact.centroids)
    return hashed.hexdigest()


def idf_of(artifact: EldrArtifact) -> Floats:
    """IDF weights of the layers that count. Raises UnusableArtifact."""
    shape = artifact.shape
    _check_shape(shape)
    mask = artifact.mask
    if not mask or len(set(mask)) != len(mask) or not all(0 <= layer < shape.layers for layer in mask):
        raise UnusableArtifact(f"its mask names no layers of {shape.layers}, or one twice")
    idf = _floats(artifact.idf, (shape.layers, shape.experts), "idf")
    if (idf < 0).any():
        raise UnusableArtifact("idf: a weight is below 0")
    return idf[list(mask)]


def centroids_of(artifact: EldrArtifact) -> Floats:
    """Centroids [clusters, masked layers × experts]. Raises UnusableArtifact."""
    width = len(artifact.mask) * artifact.shape.experts
    if not 1 <= artifact.clusters <= CLUSTERS_MAX:
        raise UnusableArtifact(f"{artifact.clusters} clusters: it is 1 to {CLUSTERS_MAX}")
    if artifact.clusters * width > _CENTROID_CELLS_MAX:
        raise UnusableArtifact("its centroids are larger than any that is used")
    centroids = _floats(artifact.centroids, (artifact.clusters, width), "centroids")
    lengths = np.linalg.norm(centroids, axis=1)
    if (np.abs(lengths - 1.0) > _LENGTH_TOLERANCE).any():
        raise UnusableArtifact("centroids: one is not of length 1")
    return centroids


def _check_shape(shape: MoeShape) -> None:
    fits = 1 <= shape.layers <= LAYERS_MAX and 1 <= shape.experts <= EXPERTS_MAX
    if not fits or shape.layers * shape.experts > CELLS_MAX:
        raise UnusableArtifact(f"{shape.layers} layers of {shape.experts} experts: no such model is used")
    if len(shape.model) > MODEL_LENGTH_MAX:
        raise UnusableArtifact("the model's fingerprint is too long")


def _floats(packed: bytes, shape: tuple[int, int], name: str) -> Floats:
    if len(packed) != shape[0] * shape[1] * 4:
        raise UnusableArtifact(f"{name}: {len(packed)} bytes, where {shape[0]} × {shape[1]} numbers are said")
    numbers = np.frombuffer(packed, "<f4").astype(np.float32).reshape(shape)
    if not np.isfinite(numbers).all():
        raise UnusableArtifact(f"{name}: holds what is no number")
    return numbers
