from __future__ import annotations

import pytest

from gateway.request.engine_api import POSTED_PATHS, is_engine_call, stored_response_of


@pytest.mark.parametrize("path", POSTED_PATHS)
def test_what_takes_a_body_is_posted(path: str) -> None:
    assert is_engine_call("POST", path)
    assert not is_engine_call("GET", path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1?stream=true&starting_after=4&include%5B%5D=x"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
def test_calls_about_a_stored_response_name_it(method: str, path: str) -> None:
    assert is_engine_call(method, path)
    assert stored_response_of(method, path) == "resp_1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/sleep"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("POST", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/"),
        ("GET", "/v1/responses/../models"),
        ("GET", "/v1/responses/.."),
        ("GET", "/v1/responses/a%2f..%2f..%2fmetrics"),
        ("GET", "/v1/responses/a/b"),
        ("GET", "/v1/responses/a\n"),
        ("GET", "/v1/responses/a?x= HTTP/1.1"),
        ("GET", "/v1/responses/" + "a" * 200),
        ("PUT", "/v1/responses/resp_1"),
    ],
)
def test_nothing_else_is_open(method: str, path: str) -> None:
    assert not is_engine_call(method, path)
