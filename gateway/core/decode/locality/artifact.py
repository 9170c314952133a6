"""What is fitted offline and compared with online: which layers count, how much each expert says, and a centroid for
each decode worker (ELDR §4.2–4.3). Plain arrays, checked before they are used; nothing in them is run.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from gateway.core.decode.locality.nearness import CLUSTERS_MAX
from gateway.core.value import value

LAYERS_MAX = 1024
EXPERTS_MAX = 4096
CELLS_MAX = 1 << 18
"""Layers times experts: what an engine may tell of is bounded by it, too."""
MODEL_LENGTH_MAX = 128
_CENTROID_CELLS_MAX = 1 << 21
_LENGTH_TOLERANCE = 1e-3

Floats = npt.NDArray[np.float32]


class UnusableArtifact(ValueError):
    """Arrays that no signature can be compared with, in words."""


@value
class Shape:
    """Of a model's mixture of experts."""

    layers: int
    experts: int
    """Of each layer."""
    model: str = ""
    """A fingerprint, in the words of whoever counts; empty: any model of this shape."""


@value
class EldrArtifact:
    """Arrays are packed little-endian, row by row."""

    shape: Shape
    mask: tuple[int, ...]
    """Layers that count, in the order in which they were chosen."""
    idf: bytes
    """float32 [layers, experts]: what a count of each expert is worth."""
    clusters: int
    """K: as many as the pool has decode workers, or groups of them that share their experts."""
    centroids: bytes
    """float32 [clusters, masked layers × experts], each of length 1."""
    calibration: str = ""
    """Digest of what it was fitted to."""
    rho: tuple[float, ...] = ()
    """Cumulative ρ by layers kept, in the order of the greedy selection; for people."""


def digest_of(artifact: EldrArtifact) -> str:
    """Equal for artifacts that compare alike, whatever else is said of them."""
    shape = artifact.shape
    told = f"{shape.layers}/{shape.experts}/{shape.model}/{artifact.mask}/{artifact.clusters}/"
    hashed = hashlib.blake2b(told.encode(), digest_size=16, person=b"nightside-eldr")
    hashed.update(artifact.idf)
    hashed.update(artifact.centroids)
    return hashed.hexdigest()


def idf_of(artifact: EldrArtifact) -> Floats:
    """Of the layers that count. Raises UnusableArtifact."""
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
    """Raises UnusableArtifact."""
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


def _check_shape(shape: Shape) -> None:
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
