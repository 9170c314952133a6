from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import Outcome, RequestId
from gateway.door.errors import ENDINGS, error_headers, kind_of

ANSWERED = {Outcome.COMPLETED, Outcome.CLIENT_ERROR}


def end(outcome: Outcome, detail: str = "replica:a: 10.0.0.7 refused") -> EndRequest:
    return EndRequest(RequestId("r1"), outcome, detail, 1)


def test_every_outcome_without_an_answer_has_its_error() -> None:
    assert set(ENDINGS) == set(Outcome) - ANSWERED


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (Outcome.REJECTED_UNKNOWN_MODEL, 404, "model_not_found"),
        (Outcome.REJECTED_RESIDENCY_INGRESS, 421, "residency_ingress"),
        (Outcome.REJECTED_RESIDENCY_PROCESSING, 403, "residency_processing"),
        (Outcome.REJECTED_QUEUE_FULL, 503, "queue_full"),
        (Outcome.REJECTED_DRAINING, 503, "draining"),
        (Outcome.EXPIRED_IN_QUEUE, 504, "queue_timeout"),
        (Outcome.EXPIRED_RUNNING, 504, "deadline_exceeded"),
        (Outcome.FAILED_BEFORE_FIRST_BYTE, 502, "engine_failed"),
        (Outcome.FAILED_INTERNALLY, 500, "internal_error"),
    ],
)
def test_statuses_and_codes_never_change(outcome: Outcome, status: int, code: str) -> None:
    kind = kind_of(end(outcome))
    assert (kind.status, kind.code) == (status, code)


def test_codes_tell_reasons_apart() -> None:
    assert len({kind.code for kind in ENDINGS.values()}) == len(ENDINGS)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - ANSWERED))
def test_where_sdks_try_again_they_are_told_when_or_not_to(outcome: Outcome) -> None:
    kind = ENDINGS[outcome]
    headers = error_headers(kind)
    if kind.status in (408, 409, 429) or kind.status >= 500:
        assert ("retry-after" in headers) != (headers.get("x-should-retry") == "false")
    if kind.retry_after_s is not None:
        assert 0 < float(headers["retry-after"]) <= 120
        assert float(headers["retry-after-ms"]) == kind.retry_after_s * 1000


def test_what_the_queue_itself_says_of_when_to_come_again_counts_for_more() -> None:
    told = replace(end(Outcome.REJECTED_QUEUE_FULL), retry_after_ns=7_250_000_000)
    headers = error_headers(kind_of(told))
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("8", "7250")
    assert error_headers(kind_of(end(Outcome.REJECTED_QUEUE_FULL)))["retry-after"] == "2", "where nobody knows"


def test_a_rule_that_refuses_is_named_to_nobody_outside_and_is_not_tried_again() -> None:
    refused = end(Outcome.REJECTED_RESIDENCY_PROCESSING, "process names neither region eu-west-1")
    assert not kind_of(refused).shows_detail
    assert error_headers(kind_of(refused))["x-should-retry"] == "false"
