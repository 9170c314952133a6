from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import Outcome, RequestId, RequestProfile
from gateway.records.finished import FinishedRequests
from gateway.request.legs import RequestSummary
from tests.support.core import profile

END = EndRequest(RequestId("r-1"), Outcome.COMPLETED, "", 1)


def test_a_consumer_that_fails_keeps_no_other_from_the_request_and_the_first_failure_is_raised() -> None:
    finished = FinishedRequests()
    told: list[str] = []

    def failing(number: int) -> Callable[..., None]:
        def take(asked: RequestProfile, *_: object) -> None:
            told.append(asked.request_id)
            raise RuntimeError(f"boom {number}")

        return take

    for number in (1, 2):
        finished.hand_to(failing(number))
    finished.hand_to(lambda asked, *_: told.append(asked.request_id))
    with pytest.raises(RuntimeError, match="boom 1"):
        finished.on_finished(profile("r-1"), END, RequestSummary(), None)
    assert told == ["r-1", "r-1", "r-1"]
