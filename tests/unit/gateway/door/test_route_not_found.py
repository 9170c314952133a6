from __future__ import annotations

import pytest

from gateway.door.route_not_found import route_hint


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/chat/completions", "POST /chat/completions: the base URL lacks /v1, as in https://HOST/v1"),
        ("GET", "/models", "GET /models: the base URL lacks /v1, as in https://HOST/v1"),
        ("GET", "/models/Qwen/Qwen3", "GET /models/Qwen/Qwen3: the base URL lacks /v1, as in https://HOST/v1"),
        ("GET", "/responses/resp_1", "GET /responses/resp_1: the base URL lacks /v1, as in https://HOST/v1"),
        ("POST", "/v1/v1/messages", "POST /v1/v1/messages: the base URL has a /v1 that this client adds by itself"),
        ("POST", "/v1/v1/chat/completions", "has a /v1 that this client adds by itself"),
        (
            "POST",
            "/messages",
            "POST /messages: this is `/v1/messages`; Anthropic's clients add the /v1, others need it",
        ),
        ("POST", "/v1/chat/completions/", "POST /v1/chat/completions/: without the slash at its end it exists"),
        ("GET", "/nowhere", "GET /nowhere: /openapi.yaml lists every URL"),
        ("GET", "/" + "a" * 500, "GET /" + "a" * 199 + "…: /openapi.yaml"),
        ("GET", "/\x1b[2J", "GET: /openapi.yaml lists every URL"),
    ],
)
def test_the_path_is_named_and_what_is_likely_to_be_meant(method: str, path: str, said: str) -> None:
    assert said in route_hint(method, path)
