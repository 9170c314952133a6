from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gateway.features.batches.lines import BATCH_CANCELLED, BATCH_EXPIRED, LineResult, ResultError, result_of
from gateway.features.batches.messages import batch_document, holds_many_more, request_lines, result_line
from gateway.features.batches.state import BatchStatus, cancelling, ended, lines_over, validated
from gateway.request.engine_api import MESSAGES_PATH
from tests.support.batches import client_batch

BATCH = validated(replace(client_batch("msgbatch_1"), endpoint=MESSAGES_PATH), "", 10, (), 0)


def counts_of(document: dict[str, object]) -> dict[str, int]:
    told = document["request_counts"]
    assert isinstance(told, dict)
    return {name: count for name, count in told.items() if count}


def test_requests_become_lines() -> None:
    first_params = b'{\n "model": "m",\n "n": 1.50}'
    body = b'{"requests": [{"custom_id": "a", "params": %b}, {"custom_id": "b", "params": []}]}' % first_params
    first, second = request_lines(body, 1_000)
    assert first.count(b"\n") == 1
    assert json.loads(first) == {
        "custom_id": "a",
        "method": "POST",
        "url": MESSAGES_PATH,
        "body": {"model": "m", "n": 1.5},
    }
    assert b"1.50" in first, "figures stay as they are written"
    assert json.loads(second)["body"] == []


def test_params_that_are_too_long_are_refused_before_they_are_formatted() -> None:
    body = b'{"requests": [{"custom_id": "a", "params": [  1  ]}, {"custom_id": "b", "params": [%b]}]}'
    assert len(list(request_lines(body % (b" " * 10), 3))) == 2, "with spaces they may be four times as long"
    with pytest.raises(ValueError, match=r"requests.1: its params have more than 12 bytes"):
        list(request_lines(body % (b" " * 11), 3))


@pytest.mark.parametrize("name", [b"custom_id", rb"custom\u005fid", rb"\u0063ustom_i\u0064"])
def test_many_more_requests_than_allowed_are_noticed_whatever_their_names_are_spelled_like(name: bytes) -> None:
    request = b'{"%b":"","params":0}' % name
    assert not holds_many_more(request * 5_000, 1)
    assert holds_many_more(request * 10_002, 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"requests": {}}',
        b'{"requests": [{"params": {}}]}',
        b'{"requests": "\xff"}',
        b'{"requests": [{"custom_id": "a", "params": ' + b"[" * 99_999,
    ],
)
def test_a_body_without_requests_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(request_lines(body, 1_000_000))


def test_counts_are_told_at_the_end() -> None:
    running = batch_document(replace(BATCH, completed=4, failed=1), has_results=False)
    assert (running["processing_status"], counts_of(running)) == ("in_progress", {"processing": 10})
    assert (running["ended_at"], running["results_url"]) == (None, None)
    done = ended(lines_over(BATCH, 5, is_expired=False), 9, 1, 60)
    told = batch_document(done, has_results=True)
    assert (told["processing_status"], counts_of(told)) == ("ended", {"succeeded": 9, "errored": 1})
    assert (told["created_at"], told["ended_at"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z")
    assert told["results_url"] == "/v1/messages/batches/msgbatch_1/results"


def test_requests_that_did_not_run_are_expired_or_cancelled() -> None:
    expired = ended(lines_over(BATCH, 5, is_expired=True), 4, 6, 6, unrun=5)
    assert expired.status is BatchStatus.EXPIRED
    assert counts_of(batch_document(expired, has_results=True)) == {"succeeded": 4, "errored": 1, "expired": 5}
    stopping = cancelling(BATCH, 3)
    told = batch_document(stopping, has_results=False)
    assert (told["processing_status"], told["cancel_initiated_at"]) == ("canceling", "1970-01-01T00:00:03Z")
    cancelled = ended(stopping, 4, 6, 6, unrun=5)
    assert counts_of(batch_document(cancelled, has_results=True)) == {"succeeded": 4, "errored": 1, "canceled": 5}


def failed_with(message: str) -> dict[str, object]:
    error = {"type": "error", "error": {"type": "api_error", "message": message}, "request_id": None}
    return {"type": "errored", "error": error}


ANTHROPIC_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}, "request_id": "q"}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (result_of("r", "a", 200, "q", b'{"id": "m"}'), {"type": "succeeded", "message": {"id": "m"}}),
        (LineResult("r", "a", None, BATCH_EXPIRED), {"type": "expired"}),
        (LineResult("r", "a", None, BATCH_CANCELLED), {"type": "canceled"}),
        (
            result_of("r", "a", 400, "q", json.dumps(ANTHROPIC_ERROR).encode()),
            {"type": "errored", "error": ANTHROPIC_ERROR},
        ),
        (result_of("r", "a", 502, "q", b'{"detail": "odd"}'), failed_with("The request failed.")),
        (LineResult("r", "a", None, ResultError("answer_too_large", "It is.")), failed_with("It is.")),
    ],
)
def test_a_result_is_shown_in_the_api_s_shape(result: LineResult, shown: dict[str, object]) -> None:
    line = result_line(result.encoded())
    assert line.endswith(b"\n")
    assert json.loads(line) == {"custom_id": "a", "result": shown}
