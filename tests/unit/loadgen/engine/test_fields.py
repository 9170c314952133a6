from __future__ import annotations

from typing import Any

import pytest

from loadgen.engine.fields import MEDIA_TOKENS, ApiError, Fields, json_body, text_of_content
from loadgen.engine.tokens import token_count


def test_null_is_absent() -> None:
    fields = Fields({"a": None})
    assert (fields.objects("a"), fields.object("a"), fields.flag("a"), fields.integer("a", at_least=0)) == (
        [],
        None,
        False,
        None,
    )


@pytest.mark.parametrize(
    ("read", "value"),
    [
        ("text", 5),
        ("flag", "yes"),
        ("objects", {}),
        ("objects", [1]),
        ("object", []),
        ("object", "x"),
    ],
)
def test_each_type_is_checked(read: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        getattr(Fields({"a": value}), read)("a")
    assert (caught.value.status, caught.value.param) == (400, "body.a")


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b""])
def test_only_objects_are_bodies(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        json_body("application/json", body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "hi"}, "hi"),
        ({"content": [{"type": "text", "text": "h"}, {"type": "input_text", "text": "i"}]}, "hi"),
        ({"content": None, "tool_calls": [{"id": 1}]}, '{"id": 1}'),
        ({"content": "hi", "tool_calls": 5}, "hi"),
        ({}, ""),
    ],
)
def test_the_text_of_a_message_is_found_in_any_shape(message: dict[str, Any], text: str) -> None:
    assert text_of_content(message) == text


PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 2000
IMAGE_PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": PICTURE}},
    {"type": "input_image", "image_url": PICTURE},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
]


@pytest.mark.parametrize("part", IMAGE_PARTS)
def test_a_picture_is_so_many_tokens_however_long_its_data_are(part: dict[str, Any]) -> None:
    text = text_of_content({"content": [{"type": "text", "text": "What is it?"}, part]})
    assert text.startswith("What is it?")
    assert token_count(text.removeprefix("What is it?").encode()) == MEDIA_TOKENS
    assert text_of_content({"content": [part | {"detail": "low"}]}) != text_of_content({"content": [part]})
    nested = {"type": "tool_result", "tool_use_id": "1", "content": [part]}
    assert MEDIA_TOKENS < token_count(text_of_content({"content": [nested]}).encode()) < MEDIA_TOKENS + 40


def test_a_document_of_text_counts_as_its_text() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "word " * 8000}}
    assert token_count(text_of_content({"content": [document]}).encode()) > 10_000


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (500, "api_error"), (503, "overloaded_error")],
)
def test_the_messages_api_has_words_of_its_own(status: int, kind: str) -> None:
    assert ApiError(status, "x", "no").messages_content() == {"type": "error", "error": {"type": kind, "message": "no"}}
