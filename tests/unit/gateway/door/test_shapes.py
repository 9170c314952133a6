from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import Outcome, RequestId
from gateway.door.errors import BODY_TOO_LARGE, ENDINGS, INVALID_API_KEY, INVALID_FIELD, kind_of
from gateway.door.shapes import ErrorShape, error_body, error_event, refusal_in_shape, shape_of

R1 = RequestId("r1")
VLLM = b'{"error":{"message":"too long","type":"BadRequestError","param":"input_tokens","code":400}}'
MESSAGES = b'{"type":"error","error":{"type":"invalid_request_error","message":"too long"}}'


def end(outcome: Outcome, detail: str = "replica:a: 10.0.0.7 refused") -> EndRequest:
    return EndRequest(R1, outcome, detail, 1)


def messages_error(body: bytes) -> dict[str, Any]:
    document = json.loads(body)
    assert set(document) == {"type", "error", "request_id"}
    assert (document["type"], document["request_id"]) == ("error", "r1")
    error: dict[str, Any] = document["error"]
    assert set(error) == {"type", "message", "code", "details"}
    assert error["details"] == {"error_code": str(error["code"])}
    return error


@pytest.mark.parametrize(
    ("path", "headers", "shape"),
    [
        ("/v1/chat/completions", {}, ErrorShape.OPENAI),
        ("/v1/nothing", {}, ErrorShape.OPENAI),
        ("/v1/responses", {}, ErrorShape.RESPONSES),
        ("/v1/responses/resp_1/cancel", {}, ErrorShape.RESPONSES),
        ("/v1/messages", {}, ErrorShape.MESSAGES),
        ("/v1/messages/count_tokens", {}, ErrorShape.MESSAGES),
        ("/v1/messages/batches", {}, ErrorShape.MESSAGES),
        ("/v1/models", {}, ErrorShape.OPENAI),
        ("/v1/models/m", {"anthropic-version": "2023-06-01"}, ErrorShape.MESSAGES),
    ],
)
def test_callers_are_known_by_what_they_call(path: str, headers: dict[str, str], shape: ErrorShape) -> None:
    assert shape_of(path, headers) is shape


@pytest.mark.parametrize("shape", ErrorShape)
@pytest.mark.parametrize("outcome", [Outcome.FAILED_BEFORE_FIRST_BYTE, Outcome.EXPIRED_IN_QUEUE])
def test_no_message_names_an_engine_s_address(outcome: Outcome, shape: ErrorShape) -> None:
    assert b"10.0.0.7" not in error_body(kind_of(end(outcome)), end(outcome).detail, shape=shape)


@pytest.mark.parametrize("shape", [ErrorShape.OPENAI, ErrorShape.RESPONSES])
def test_a_rejection_says_why(shape: ErrorShape) -> None:
    kind = ENDINGS[Outcome.REJECTED_UNKNOWN_MODEL]
    body = json.loads(error_body(kind, "the model `x` does not exist", "model", shape=shape))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "`x`" in body["error"]["message"]
    assert body["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (INVALID_FIELD, "invalid_request_error"),
        (INVALID_API_KEY, "authentication_error"),
        (BODY_TOO_LARGE, "request_too_large"),
        (ENDINGS[Outcome.REJECTED_UNKNOWN_MODEL], "not_found_error"),
        (ENDINGS[Outcome.REJECTED_RESIDENCY_INGRESS], "permission_error"),
        (ENDINGS[Outcome.REJECTED_RESIDENCY_PROCESSING], "permission_error"),
        (ENDINGS[Outcome.REJECTED_TENANT_LIMIT], "rate_limit_error"),
        (ENDINGS[Outcome.REJECTED_QUEUE_FULL], "overloaded_error"),
        (ENDINGS[Outcome.EXPIRED_IN_QUEUE], "timeout_error"),
        (ENDINGS[Outcome.FAILED_BEFORE_FIRST_BYTE], "api_error"),
    ],
)
def test_messages_name_a_type_for_each_status_and_keep_the_code(kind: Any, named: str) -> None:
    error = messages_error(error_body(kind, shape=ErrorShape.MESSAGES, request_id=R1))
    assert (error["type"], error["code"]) == (named, kind.code)


class TestInsideAStream:
    def event(self, shape: ErrorShape) -> bytes:
        return error_event(end(Outcome.FAILED_MIDSTREAM), shape, R1, sequence_number=7)

    def test_of_chat_it_is_one_event_and_done(self) -> None:
        event, done, rest = self.event(ErrorShape.OPENAI).split(b"\n\n")
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "engine_failed_midstream"
        assert (done, rest) == (b"data: [DONE]", b"")

    def test_of_responses_it_is_an_event_of_their_own_that_sdks_raise_all_the_same(self) -> None:
        event, rest = self.event(ErrorShape.RESPONSES).split(b"\n\n")
        name, data = event.split(b"\n")
        told = json.loads(data.removeprefix(b"data: "))
        assert (name, rest) == (b"event: error", b"")
        assert (told["type"], told["code"], told["sequence_number"]) == ("error", "engine_failed_midstream", 7)
        assert told["error"] == {key: told["error"][key] for key in ("message", "type", "param", "code")}
        assert told["error"]["message"] == told["message"]

    def test_of_messages_it_is_theirs(self) -> None:
        event, rest = self.event(ErrorShape.MESSAGES).split(b"\n\n")
        name, data = event.split(b"\n")
        assert (name, rest) == (b"event: error", b"")
        assert messages_error(data.removeprefix(b"data: "))["code"] == "engine_failed_midstream"


class TestRefusalsOfEngines:
    @pytest.mark.parametrize(
        ("body", "shape"), [(VLLM, ErrorShape.OPENAI), (VLLM, ErrorShape.RESPONSES), (MESSAGES, ErrorShape.MESSAGES)]
    )
    def test_the_right_shape_stays_as_it_is(self, body: bytes, shape: ErrorShape) -> None:
        assert refusal_in_shape(body, 400, shape, R1) is body

    @pytest.mark.parametrize(
        ("body", "message", "code"),
        [
            (VLLM, "too long", 400),
            (b'{"object":"error","message":"too long","type":"BadRequestError","code":400}', "too long", 400),
            (b'{"detail":"Not Found"}', "Not Found", 404),
            (b'{"error":"Unauthorized"}', "Unauthorized", 404),
            (b"<html>", "The engine answered with status 404.", 404),
            (b"", "The engine answered with status 404.", 404),
        ],
    )
    def test_any_other_is_told_in_the_words_of_messages(self, body: bytes, message: str, code: int) -> None:
        error = messages_error(refusal_in_shape(body, 404, ErrorShape.MESSAGES, R1))
        assert (error["message"], error["code"], error["type"]) == (message, code, "not_found_error")

    @pytest.mark.parametrize(
        "body",
        [
            b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}',
            b'{"type":"error","code":"400","message":"too long"}',
        ],
    )
    def test_flat_errors_are_nested(self, body: bytes) -> None:
        error = json.loads(refusal_in_shape(body, 400, ErrorShape.RESPONSES, R1))["error"]
        assert error["message"] == "too long"
        assert set(error) == {"message", "type", "param", "code"}
