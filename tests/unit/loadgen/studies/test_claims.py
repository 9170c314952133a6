"""Verdicts follow from arithmetic."""

from __future__ import annotations

import pytest

from loadgen.studies.claims import Claim
from loadgen.studies.numbers import Middle


def one(value: float) -> Middle:
    return Middle(value, value, value)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (Claim("a", 1.12, 1.2, [one(1.13), one(1.5)]), "reached"),
        (Claim("a", 1.12, 1.2, [one(1.115)]), "reached"),
        (Claim("a", 1.12, 1.2, [one(1.0), one(1.3)]), "reached in 1 of 2"),
        (Claim("a", 2.0, 2.0, [one(1.0), one(1.5)]), "short by 25% at best"),
        (Claim("a", 0.1, 0.2, [one(0.15)], more_is_better=False), "reached"),
        (Claim("a", 0.1, 0.2, [one(0.3)], more_is_better=False), "short by 50%"),
        (Claim("a", 0.1, 0.2, [one(0.15)], is_input=True), "alike"),
        (Claim("a", 0.1, 0.2, [one(0.4)], is_input=True), "+100%"),
        (Claim("a", 0.2, 0.3, [one(0.1)], is_input=True), "-50%"),
    ],
)
def test_a_verdict_follows_from_the_worst_case(claim: Claim, verdict: str) -> None:
    assert claim.verdict == verdict


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (Claim("a", 1.12, 1.2, [one(1.3), None]), "1 of 2 pairs played"),
        (Claim("a", 1.12, 1.2, [None, None]), "0 of 2 pairs played"),
        (Claim("a", 1.12, 1.2, [one(1.3), one(1.0), None]), "reached in 1 of 2; 2 of 3 pairs played"),
        (Claim("a", 2.0, 2.0, [one(1.0), None]), "short by 50%; 1 of 2 pairs played"),
        (Claim("a", 0.1, 0.2, [one(0.15), None], is_input=True), "alike; 1 of 2 pairs played"),
        (Claim("a", 0.1, 0.2, [None], is_input=True), "0 of 1 pairs played"),
    ],
)
def test_nothing_is_reached_while_a_pair_is_missing(claim: Claim, verdict: str) -> None:
    assert claim.verdict == claim.cells()[3] == verdict
    assert not claim.is_reached


def test_a_claim_shows_ratios_and_shares() -> None:
    assert Claim("a", 1.12, 1.2, [one(1.5)]).cells() == ("a", "× 1.12 to × 1.20", "× 1.50", "reached")
    assert Claim("a", 0.1, 0.2, [one(0.123)], is_share=True).cells()[1:3] == ("10.0 % to 20.0 %", "12.3 %")
