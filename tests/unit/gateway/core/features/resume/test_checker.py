"""Invariants of resumption: each one that is broken is named."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.features.resume.checker import ResumeChecker
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.features.resume.counts import Resumes, with_resumes
from gateway.core.kernel.events import LegEnded, RequestArrived
from gateway.core.vocabulary import LegResult, RequestId
from tests.support.core import profile
from tests.support.orders import start

FIRST = start()


def checker(*, most: int = 3) -> ResumeChecker:
    made = ResumeChecker(lambda: ResumeConfig(resumes_max=most))
    made.arrived(RequestArrived(replace(profile("r"), request_id=FIRST.request_id), 1))
    assert not made.wrong_start(FIRST, has_begun=False)
    return made


def breaks(there: int) -> LegEnded:
    notes = with_resumes({}, Resumes(there))
    rest = profile("rest")
    return LegEnded(FIRST.request_id, 1, 1, LegResult.FAILED, remainder=rest, notes=notes)


def test_resumptions_at_peers_count() -> None:
    one = checker()
    one.leg_ended(breaks(1))
    assert not one.wrong_start(replace(FIRST, attempt=2, segment=2), has_begun=True)


@pytest.mark.parametrize(
    ("segment", "has_begun", "left", "broken"),
    [
        (0, True, None, "a continued answer has begun, and no other has"),
        (1, False, None, "a continued answer has begun, and no other has"),
        (2, True, None, "resumes are counted over all gateways"),
        (1, True, 9, "a forward allows no more resumes than are left"),
    ],
)
def test_each_broken_invariant_is_named(segment: int, *, has_begun: bool, left: int | None, broken: str) -> None:
    order = replace(FIRST, attempt=2, segment=segment)
    if left is not None:
        order.notes = with_resumes({}, Resumes(left))
    assert broken in checker().wrong_start(order, has_begun=has_begun)


def test_no_answer_is_resumed_for_ever() -> None:
    order = replace(FIRST, attempt=2, segment=1)
    assert "no answer is resumed more often than allowed" in checker(most=0).wrong_start(order, has_begun=True)


def test_nothing_is_kept_of_a_request_that_has_ended() -> None:
    one = checker()
    one.forget(FIRST.request_id)
    with pytest.raises(KeyError):
        one.wrong_start(FIRST, has_begun=False)
    one.forget(RequestId("unknown"))
