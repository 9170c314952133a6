from __future__ import annotations

import json

import pytest

from gateway.core.kernel.events import TooLong
from gateway.request.too_long import too_long_in


def vllm(message: str) -> bytes:
    error = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
    return json.dumps({"error": error}).encode()


def sglang(message: str) -> bytes:
    flat = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    return json.dumps(flat).encode()


LLAMA_CPP = (
    b'{"error":{"code":400,"message":"request (5031 tokens) exceeds the available context size (2048 tokens), try '
    b'increasing it","type":"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":2048}}'
)
"""Recorded error of llama.cpp."""


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            400,
            vllm(
                "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input "
                "tokens, which exceeds this limit even without any output tokens."
            ),
            TooLong(2048, 2049),
        ),
        (
            400,
            vllm(
                "This model's maximum context length is 2048 tokens. However, you requested 100 output tokens and your "
                "prompt contains 2000 input tokens, for a total of 2100 tokens."
            ),
            TooLong(2048, 2100),
        ),
        (
            400,
            vllm("max_tokens=100000 cannot be greater than max_model_len=2048. Please request fewer output tokens."),
            TooLong(2048),
        ),
        (
            400,
            vllm("This model's maximum context length is 4097 tokens. However, you requested 4226 tokens (4000 in the"),
            TooLong(4097, 4226),
        ),
        (
            400,
            sglang("The input (61709 tokens) is longer than the model's context length (40960 tokens)."),
            TooLong(40_960, 61_709),
        ),
        (
            400,
            sglang(
                "Requested token count exceeds the model's maximum context length of 202752 tokens. You requested a "
                "total of 202941 tokens: 170941 tokens from the input messages and 32000 tokens for the completion."
            ),
            TooLong(202_752, 202_941),
        ),
        (400, LLAMA_CPP, TooLong(2048, 5031)),
        (
            422,
            b'{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",'
            b'"error_type":"validation"}',
            TooLong(4096),
        ),
        (400, b'{"error":{"message":"too much","type":"x","code":"context_length_exceeded"}}', TooLong()),
    ],
)
def test_each_engine_says_so_in_its_own_words(status: int, body: bytes, told: TooLong) -> None:
    assert too_long_in(status, body) == told


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, vllm("temperature must be non-negative, got -1.0.")),
        (400, vllm("1 validation error: 'input': \"This model's maximum context length is 1 tokens.\"")),
        (404, LLAMA_CPP),
        (500, LLAMA_CPP),
        (400, b"request (5 tokens) exceeds nothing"),
        (400, b""),
        (400, b'{"error":{"message":7,"n_ctx":1,"type":"other"}}'),
        (400, vllm("This model's maximum context length is 99999999999 tokens.")),
    ],
)
def test_what_is_about_something_else_or_quotes_a_client_says_nothing(status: int, body: bytes) -> None:
    assert too_long_in(status, body) is None


def test_numbers_that_are_none_are_not_taken() -> None:
    error = {"type": "exceed_context_size_error", "n_ctx": True, "n_prompt_tokens": -1, "message": "x"}
    assert too_long_in(400, json.dumps({"error": error}).encode()) == TooLong()
