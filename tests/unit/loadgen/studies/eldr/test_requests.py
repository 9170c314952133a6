from __future__ import annotations

import numpy as np

from loadgen.studies.eldr.requests import Requests, split


def requests(documents: list[str], domains: list[str]) -> Requests:
    count = len(documents)
    return Requests(
        tuple(documents),
        tuple(domains),
        np.ones((count, 2, 3), np.uint16),
        np.full((count, 2, 3), 0.5, np.float32),
        (10,) * count,
    )


def test_calibration_and_test_share_no_document_and_have_all_domains() -> None:
    documents = [f"{domain}{number // 3}" for domain in "abc" for number in range(12)]
    given = requests(documents, [each[0] for each in documents])
    calibration, test = split(given, 0.5)
    assert not set(calibration.documents) & set(test.documents)
    assert len(calibration) + len(test) == len(given)
    assert set(calibration.domains) == set(test.domains) == {"a", "b", "c"}


def test_of_a_domain_of_one_document_it_is_the_calibrations() -> None:
    calibration, test = split(requests(["a0", "a0", "b0", "b1"], ["a", "a", "b", "b"]), 0.5)
    assert calibration.documents.count("a0") == 2
    assert set(test.domains) == {"b"}
