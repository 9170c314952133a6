from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.request.engine_errors import error_type_of, in_openai_shape, message_of

VLLM = b'{"error": {"message":"The model `nope` does not exist.","type":"NotFoundError","param":"model","code":404}}'
SGLANG = b'{"object":"error","message":"context too long","type":"BadRequestError","param":null,"code":400}'
LLAMA = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":5031}}'
TGI = b'{"error":"Input validation error: x","error_type":"validation"}'
TEXT_KEY = b'{"error":"Unauthorized"}'
FASTAPI = b'{"detail":"Bad include"}'
FASTAPI_LIST = b'{"detail":[{"loc":["body"],"msg":"x"}]}'
ANTHROPIC = b'{"type":"error","error":{"type":"invalid_request_error","message":"x"}}'
PLAIN = b"Failed to deserialize the JSON body"


def shaped(body: bytes, status: int = 400) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(in_openai_shape(body, status))
    assert set(document) == {"error"}
    error: dict[str, Any] = document["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return error


@pytest.mark.parametrize("body", [VLLM, ANTHROPIC])
def test_an_error_that_sdks_can_read_stays_as_it_is(body: bytes) -> None:
    assert in_openai_shape(body, 404) == body


def test_sglang_s_flat_error_is_nested() -> None:
    assert shaped(SGLANG) == {"message": "context too long", "type": "BadRequestError", "param": None, "code": 400}


def test_a_response_that_failed_says_why_inside() -> None:
    error = shaped(b'{"type":"response.failed","response":{"error":{"code":"invalid_prompt","message":"too odd"}}}')
    assert (error["message"], error["code"], error["type"]) == ("too odd", "invalid_prompt", "invalid_request_error")
    assert shaped(b'{"type":"response.failed","response":{"error":null}}')["code"] == 400


def test_llamacpp_s_error_gets_what_it_lacks_and_keeps_what_it_adds() -> None:
    error = shaped(LLAMA)
    assert (error["type"], error["code"], error["param"]) == ("exceed_context_size_error", 400, None)
    assert error["n_prompt_tokens"] == 5031


@pytest.mark.parametrize(
    ("body", "message", "kind"),
    [
        (TGI, "Input validation error: x", "validation"),
        (TEXT_KEY, "Unauthorized", "invalid_request_error"),
        (FASTAPI, "Bad include", "invalid_request_error"),
        (FASTAPI_LIST, '[{"loc":["body"],"msg":"x"}]', "invalid_request_error"),
        (PLAIN, "Failed to deserialize the JSON body", "invalid_request_error"),
    ],
)
def test_an_error_in_one_word_becomes_a_message(body: bytes, message: str, kind: str) -> None:
    error = shaped(body, 422)
    assert (error["message"], error["type"], error["code"]) == (message, kind, 422)


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"{}", b"[]", b"{bad", b"\xff\xfe", b"null", b'""'])
def test_an_error_without_words_gets_some(body: bytes) -> None:
    assert shaped(body, 500)["type"] == "server_error"
    assert isinstance(shaped(body, 500)["message"], str)
    assert shaped(body, 500)["message"]


def test_deep_nesting_is_no_way_in() -> None:
    assert shaped(b"[" * 200_000)["message"] == "The engine answered with status 400."


def test_words_and_kind_can_be_asked_for() -> None:
    assert [message_of(body) for body in (SGLANG, TGI, VLLM)] == [
        "context too long",
        "Input validation error: x",
        "The model `nope` does not exist.",
    ]
    assert message_of(b"<html>") == ""
    assert (error_type_of(TGI), error_type_of(VLLM)) == ("validation", "")
