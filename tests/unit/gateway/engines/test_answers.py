from __future__ import annotations

import json

import pytest

from gateway.engines.answers import EngineError, Meaning, read_error


def nested(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, "type": "T", "param": None, "code": 400, **more}}).encode()


def meaning(status: int, body: bytes, *, is_pinned: bool = False) -> Meaning:
    return read_error(status, body, is_pinned=is_pinned).meaning


VLLM_BUSY = nested("The engine is currently busy and cannot accept new requests. Please try again later.", code=503)
SGLANG_FULL = b'{"object":"error","message":"The request queue is full.","type":"ServiceUnavailable","code":503}'
TGI_FULL = b'{"error":"Model is overloaded","error_type":"overloaded"}'
OLLAMA_FULL = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
LLAMA_LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


@pytest.mark.parametrize(
    ("status", "body"),
    [(503, VLLM_BUSY), (503, SGLANG_FULL), (429, TGI_FULL), (503, OLLAMA_FULL), (503, LLAMA_LOADING), (503, b"")],
)
def test_a_full_engine_is_full(status: int, body: bytes) -> None:
    assert meaning(status, body) is Meaning.FULL


def test_vllm_says_500_while_it_shuts_down() -> None:
    assert meaning(500, nested("cannot schedule new futures after shutdown")) is Meaning.CLOSING


def test_a_prompt_quoted_in_an_error_shuts_nothing_down() -> None:
    assert meaning(500, nested("bad: 'cannot schedule new futures after shutdown'")) is Meaning.BROKEN
    assert meaning(400, nested("cannot schedule new futures after shutdown")) is Meaning.REQUEST


def test_a_field_that_sglang_refuses_is_the_request_s_fault_whatever_the_status_says() -> None:
    words = "Using priority is disabled for this server. Please send a new request without a priority."
    error = read_error(503, json.dumps({"object": "error", "message": words}).encode(), is_pinned=False)
    assert (error.meaning, error.status) == (Meaning.REQUEST, 400)
    assert json.loads(error.body)["error"]["message"] == words


@pytest.mark.parametrize("words", ["routed_dp_rank=3 out of range [0, 2)", "DP rank 1 is not active."])
def test_a_rank_is_our_own_affair(words: str) -> None:
    assert meaning(400, nested(words), is_pinned=True) is Meaning.BROKEN
    assert meaning(400, nested(words)) is Meaning.REQUEST


def test_tgi_failing_to_generate_is_broken() -> None:
    assert meaning(424, b'{"error":"Request failed during generation: x","error_type":"generation"}') is Meaning.BROKEN
    assert meaning(422, b'{"error":"Input validation error","error_type":"validation"}') is Meaning.REQUEST


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Meaning.REQUEST),
        (404, Meaning.REQUEST),
        (401, Meaning.BROKEN),
        (408, Meaning.BROKEN),
        (502, Meaning.BROKEN),
    ],
)
def test_other_statuses_mean_what_they_say(status: int, expected: Meaning) -> None:
    assert meaning(status, b"{}") is expected


def test_what_has_the_shape_is_not_touched() -> None:
    body = nested("temperature must be non-negative", param="temperature")
    assert read_error(400, body, is_pinned=False) == EngineError(Meaning.REQUEST, 400, body)
