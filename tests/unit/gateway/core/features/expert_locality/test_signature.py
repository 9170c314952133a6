from __future__ import annotations

import numpy as np
import pytest

from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.nearness import UNIT, SignatureState, unpack
from tests.support.locality import MODEL, artifact_of


def by_definition(counts: np.ndarray, mask: list[int], idf: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Cosines by the definition of ELDR §4.2.2, step by step."""
    weighted = counts.astype(np.float64) * idf
    kept = np.concatenate([weighted[layer] for layer in mask])
    cosines: np.ndarray = centroids @ (kept / np.sqrt((kept**2).sum()))
    return cosines


def test_it_is_the_cosine_of_the_signature_as_the_paper_makes_it() -> None:
    rng = np.random.default_rng(1)
    mask, idf = (3, 0), rng.uniform(0, 2, (4, 16))
    centroids = rng.uniform(0, 1, (5, 32))
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    comparer = Comparer(artifact_of(centroids.tolist(), layers=4, mask=mask, idf=idf.tolist()))
    counts = rng.integers(0, 65_535, (4, 16), dtype=np.uint16)
    nearness = comparer.nearness(counts, MODEL)
    assert (nearness.state, nearness.artifact) == (SignatureState.USED, comparer.digest)
    expected = by_definition(counts, list(mask), idf, centroids)
    assert np.abs(np.array(unpack(nearness.cosines)) / UNIT - expected).max() < 1e-4


def test_how_long_the_prompt_was_does_not_matter() -> None:
    comparer = Comparer(artifact_of([[1, 0], [1, 1]]))
    short, long = (comparer.nearness(np.array([each], np.uint16), MODEL) for each in ([1, 2], [1000, 2000]))
    assert short == long


@pytest.mark.parametrize(
    "counts, model, state",
    [
        ([[0, 0], [5, 5]], MODEL, SignatureState.EMPTY),
        ([[0, 3], [0, 0]], MODEL, SignatureState.EMPTY),
        ([[1, 1]], MODEL, SignatureState.FOREIGN),
        ([[1, 1, 1], [1, 1, 1]], MODEL, SignatureState.FOREIGN),
        ([[1, 1], [1, 1]], "another", SignatureState.FOREIGN),
        ([[1, 1], [1, 1]], "", SignatureState.FOREIGN),
    ],
)
def test_what_cannot_be_compared_says_why(counts: list[list[int]], model: str, state: SignatureState) -> None:
    """The second expert fires for every request, so it does not count."""
    comparer = Comparer(artifact_of([[1, 0]], layers=2, idf=[[1, 0], [1, 1]]))
    nearness = comparer.nearness(np.array(counts, np.uint16), model)
    assert (nearness.state, nearness.cosines) == (state, b"")


def test_an_artifact_of_no_model_by_name_takes_any_of_its_shape() -> None:
    comparer = Comparer(artifact_of([[1, 0]], model=""))
    assert comparer.nearness(np.array([[1, 1]], np.uint16), "whatever").state is SignatureState.USED
