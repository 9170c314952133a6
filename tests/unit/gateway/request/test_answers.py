from __future__ import annotations

import json

import pytest

from gateway.request.answers import Answer, TokenUsage, first_id_of, inspect_answer

RESPONSE = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None, "usage": None}
COUNTED = {"input_tokens": 14, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 16}


def test_usage_is_read() -> None:
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    assert inspect_answer(body.encode()) == Answer(None, TokenUsage(3, 4, None))


def test_a_response_says_its_id() -> None:
    body = json.dumps({**RESPONSE, "status": "incomplete", "usage": COUNTED}).encode()
    assert inspect_answer(body) == Answer(None, TokenUsage(14, 16, 8), "resp_1")
    assert inspect_answer(b'{"id":"chatcmpl-1","object":"chat.completion"}').response_id is None


@pytest.mark.parametrize(
    ("beginning", "found"),
    [
        (b'{"id":"resp_1","created_at":1,"output":[', "resp_1"),
        (b' {\n "id": "resp_1"', "resp_1"),
        (b'{"output":[{"id":"msg_1"', None),
        (b'{"id":"%b"' % (b"x" * 300), None),
    ],
)
def test_an_answer_too_large_to_read_says_its_id_first(beginning: bytes, found: str | None) -> None:
    assert first_id_of(beginning) == found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html>",
        b'{"choices":[{"finish_reason":"abort"}]}',
        b'{"object":"response","status":"cancelled"}',
        b'{"object":"response","status":"failed","error":{"code":"server_error"}}',
        b'{"type":"message","stop_reason":null}',
        b'{"error":{"code":500}}',
        b'{"choices":[{"finish_reason":"stop"}',
    ],
)
def test_what_is_no_answer_is_a_fault(body: bytes) -> None:
    assert inspect_answer(body).fault is not None


def test_faults_quote_nothing() -> None:
    fault = inspect_answer(b'{"error":{"message":"your prompt was: secret","code":500}}').fault
    assert fault is not None
    assert "secret" not in fault.detail


def test_tokens_from_the_cache_are_counted_beside_the_others_and_added() -> None:
    counted = {
        "input_tokens": 5,
        "cache_read_input_tokens": 16,
        "cache_creation_input_tokens": 1,
        "output_tokens": 2,
    }
    body = json.dumps({"type": "message", "stop_reason": "end_turn", "usage": counted})
    assert inspect_answer(body.encode()) == Answer(None, TokenUsage(22, 2, 16))
