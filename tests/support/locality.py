"""Builders for expert-locality artifacts."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence

import numpy as np

from gateway.core.features.expert_locality.artifact import EldrArtifact, MoeShape
from gateway.core.features.expert_locality.signature import pack
from gateway.core.nearness import Nearness, SignatureState

MODEL = "tiny-moe"


def artifact_of(
    centroids: Sequence[Sequence[float]],
    *,
    layers: int = 1,
    mask: tuple[int, ...] = (0,),
    idf: Sequence[Sequence[float]] | None = None,
    model: str = MODEL,
) -> EldrArtifact:
    """Artifact with these centroids, whose rows are normalised to unit length."""
    rows = np.array(centroids, np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    experts = rows.shape[1] // len(mask)
    weights = np.ones((layers, experts), np.float32) if idf is None else np.array(idf, np.float32)
    return EldrArtifact(
        MoeShape(layers, experts, model), mask, weights.astype("<f4").tobytes(), len(rows), rows.astype("<f4").tobytes()
    )


def near(*cosines: float, artifact: str = "a1", state: SignatureState = SignatureState.USED) -> Nearness:
    return Nearness(state, artifact, pack(list(cosines)))


def told(counts: Sequence[Sequence[int]], /, *, model: str = MODEL, **other: object) -> bytes:
    """Expert counts in the form in which an engine's plug-in reports them."""
    rows = np.array(counts, "<u2")
    document: dict[str, object] = {
        "v": 1,
        "layers": rows.shape[0],
        "experts": rows.shape[1],
        "model": model,
        "tokens": 9,
        "counts": b64encode(zlib.compress(rows.tobytes())).decode(),
    }
    return json.dumps(document | other).encode()
