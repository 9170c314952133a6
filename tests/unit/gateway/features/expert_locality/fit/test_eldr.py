from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.core.features.expert_locality.artifact import centroids_of, digest_of
from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.nearness import UNIT, unpack
from gateway.features.expert_locality.fit.balanced_kmeans import TooFewPoints
from gateway.features.expert_locality.fit.eldr import EldrRules, fit_eldr, idf_over, score_eldr, signatures
from gateway.features.expert_locality.fit.eldr_calibration import Calibration, UnusableCalibration, by_document
from tests.support.calibrations import calibration

GIVEN = calibration()


def homes(given: Calibration, labels: np.ndarray) -> dict[int, set[str]]:
    return {int(label): {given.domains[at] for at in np.flatnonzero(labels == label)} for label in set(labels.tolist())}


def test_layers_that_tell_nothing_are_left_out_and_clusters_are_of_one_domain() -> None:
    made = fit_eldr(GIVEN, EldrRules(3))
    assert made.artifact.mask[0] in (0, 1)
    assert len(made.artifact.mask) < 4
    assert sorted(made.sizes) == [16, 16, 16]
    assert all(len(domains) == 1 for domains in homes(GIVEN, made.labels).values())
    assert made.scores is not None
    assert made.scores.masked > made.scores.transformations["count-idf"]
    assert set(made.scores.transformations) == {"count", "count-idf", "sqrt", "binary"}


def test_what_a_gateway_works_out_is_the_signature_that_was_fitted() -> None:
    made = fit_eldr(GIVEN, EldrRules(3, held_out=0))
    comparer = Comparer(made.artifact)
    expected = made.points @ centroids_of(made.artifact).T
    for at in range(0, len(GIVEN), 7):
        cosines = np.array(unpack(comparer.nearness(GIVEN.prefill[at], "m").cosines)) / UNIT
        assert np.abs(cosines - expected[at]).max() < 1e-4
        assert cosines.argmax() == made.labels[at]


def test_idf_is_the_papers() -> None:
    prefill = np.array([[[1, 0, 2]], [[3, 0, 0]]], np.uint16)
    assert idf_over(prefill)[0].tolist() == pytest.approx([np.log(3 / 3), np.log(3 / 1), np.log(3 / 2)])


def test_what_is_scored_on_is_of_other_documents_than_what_is_fitted_to() -> None:
    fitted, tested = by_document(GIVEN, 0.25)
    assert not set(fitted.documents) & set(tested.documents)
    assert len(fitted) + len(tested) == len(GIVEN)
    assert len(set(tested.documents)) == 6
    with pytest.raises(AssertionError, match="no test document is among the fitted ones"):
        score_eldr(GIVEN, tested)


def test_the_same_calibration_for_another_k_keeps_layers_and_weights() -> None:
    first = fit_eldr(GIVEN, EldrRules(3, held_out=0)).artifact
    steps: list[str] = []
    again = fit_eldr(GIVEN, EldrRules(4, held_out=0), steps.append, previous=first).artifact
    assert (again.mask, again.idf, again.rho) == (first.mask, first.idf, first.rho)
    assert again.clusters == 4
    assert not any("choosing layers" in each for each in steps)
    assert digest_of(again) != digest_of(first)


def test_a_refit_puts_each_centroid_where_the_one_stood_that_it_is_most_like() -> None:
    first = fit_eldr(GIVEN, EldrRules(3, held_out=0))
    later = calibration(seed=9)
    refit = fit_eldr(later, EldrRules(3, held_out=0, seed=5), previous=first.artifact)
    assert homes(later, refit.labels) == homes(GIVEN, first.labels)


def test_fewer_requests_than_workers_are_too_few() -> None:
    with pytest.raises(TooFewPoints, match="48 requests are too few for 49"):
        fit_eldr(GIVEN, EldrRules(49))


def test_one_domain_or_one_document_is_fitted_and_says_that_it_has_no_scores() -> None:
    one = calibration(domains=1)
    assert max(fit_eldr(one, EldrRules(3, held_out=0)).sizes) == 16
    alone = replace(GIVEN, documents=("text",) * len(GIVEN))
    assert fit_eldr(alone, EldrRules(3)).unscored == "too few documents to hold any out"


def test_duplicates_are_clustered_too_and_requests_that_say_nothing_left_out() -> None:
    twice = GIVEN.only([0, 0, 0, 0, 2, 2, 2, 2])
    made = fit_eldr(twice, EldrRules(2, held_out=0))
    assert made.sizes == [4, 4]
    silent = replace(
        GIVEN, prefill=np.where(np.arange(len(GIVEN))[:, None, None] < 3, 0, GIVEN.prefill).astype(np.uint16)
    )
    assert fit_eldr(silent, EldrRules(3, held_out=0)).dropped == 3


def test_what_tells_nobody_apart_cannot_be_fitted_to() -> None:
    alike = replace(GIVEN, prefill=np.ones_like(GIVEN.prefill))
    with pytest.raises(UnusableCalibration, match="no request of the calibration tells"):
        fit_eldr(alike, EldrRules(3))
    with pytest.raises(UnusableCalibration, match="of one request alone"):
        fit_eldr(GIVEN.only([0]), EldrRules(1))


def test_a_signature_is_of_length_one() -> None:
    rows = signatures(GIVEN.prefill, idf_over(GIVEN.prefill), [1, 0])
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-5)
