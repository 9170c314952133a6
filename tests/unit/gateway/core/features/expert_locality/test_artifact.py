from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.core.features.expert_locality.artifact import CELLS_MAX, MoeShape, UnusableArtifact, digest_of
from gateway.core.features.expert_locality.signature import Comparer
from tests.support.locality import artifact_of

GOOD = artifact_of([[1, 0, 0], [0, 1, 0]], layers=2)


def floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


@pytest.mark.parametrize(
    "wrong, fault",
    [
        (replace(GOOD, mask=()), "names no layers"),
        (replace(GOOD, mask=(2,)), "names no layers of 2"),
        (replace(GOOD, mask=(0, 0)), "or one twice"),
        (replace(GOOD, mask=(0, 1)), "centroids: 24 bytes, where 2 × 6"),
        (replace(GOOD, idf=GOOD.idf[:-1]), "idf: 23 bytes, where 2 × 3 numbers are said"),
        (replace(GOOD, idf=floats(1, 1, 1, 1, 1, float("nan"))), "idf: holds what is no number"),
        (replace(GOOD, idf=floats(1, 1, 1, 1, 1, -1)), "idf: a weight is below 0"),
        (replace(GOOD, clusters=3), "centroids: 24 bytes, where 3 × 3"),
        (replace(GOOD, clusters=0, centroids=b""), "0 clusters"),
        (replace(GOOD, clusters=10**9), "1000000000 clusters"),
        (replace(GOOD, centroids=floats(1, 0, 0, 0, 0, 0)), "not of length 1"),
        (replace(GOOD, centroids=floats(1, 0, 0, 0, float("inf"), 0)), "centroids: holds what is no number"),
        (replace(GOOD, shape=MoeShape(0, 3)), "no such model"),
        (replace(GOOD, shape=MoeShape(1024, CELLS_MAX)), "no such model"),
        (replace(GOOD, shape=MoeShape(2, 3, "x" * 200)), "fingerprint is too long"),
    ],
)
def test_what_nothing_can_be_compared_with_is_refused_in_words(wrong: object, fault: str) -> None:
    with pytest.raises(UnusableArtifact, match=fault):
        Comparer(wrong)  # type: ignore[arg-type]


def test_a_digest_is_of_all_that_is_compared_with_and_of_nothing_else() -> None:
    digest = digest_of(GOOD)
    assert digest_of(replace(GOOD, rho=(0.5,), calibration="other")) == digest
    others = [
        replace(GOOD, mask=(1,)),
        replace(GOOD, shape=MoeShape(2, 3, "another")),
        replace(GOOD, idf=floats(1, 1, 1, 1, 1, 2)),
        artifact_of([[1, 0, 0], [0, 0, 1]], layers=2),
    ]
    assert len({digest, *map(digest_of, others)}) == 5
