from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.engine.api_requests import GenerationRequest, check_length, parse_generation
from loadgen.engine.fields import ApiError
from loadgen.engine.tokens import PromptMessage, chat_prompt, text_of
from loadgen.engine.vocabulary import Endpoint

SERVED = ("base", "adapter")
CHAT = {"model": "base", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION = {"model": "base", "prompt": "hello"}


def parse(endpoint: Endpoint, fields: dict[str, Any]) -> GenerationRequest:
    return parse_generation(endpoint, "application/json", json.dumps(fields).encode(), SERVED)


def chat(**fields: Any) -> GenerationRequest:
    return parse(Endpoint.CHAT, CHAT | fields)


def completion(**fields: Any) -> GenerationRequest:
    return parse(Endpoint.COMPLETION, COMPLETION | fields)


def chat_fault(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    return caught.value


def completion_fault(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    return caught.value


def test_chat_defaults() -> None:
    assert chat() == GenerationRequest(
        endpoint=Endpoint.CHAT,
        model="base",
        prompt=chat_prompt([PromptMessage("user", "hello")]),
        output_tokens_max=None,
        output_tokens_min=0,
        ignore_eos=False,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        cache_salt="",
        return_token_ids=False,
    )


def test_completions_default_to_16_tokens() -> None:
    assert completion().output_tokens_max == 16
    assert completion().prompt == b"hello"


def test_chat_prefers_the_newer_name_for_the_limit() -> None:
    assert chat(max_tokens=5).output_tokens_max == 5
    assert chat(max_tokens=5, max_completion_tokens=7).output_tokens_max == 7
    assert completion(max_tokens=5, max_completion_tokens=7).output_tokens_max == 5


def test_null_counts_as_absent() -> None:
    assert chat(max_tokens=None, stream=None, stream_options=None, temperature=None, n=None) == chat()


def test_without_a_model_the_first_is_meant() -> None:
    assert chat(model=None).model == "base"
    assert chat(model="adapter").model == "adapter"


def test_continuous_usage_needs_usage() -> None:
    both = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    alone = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert (both.include_usage, both.continuous_usage) == (True, True)
    assert (alone.include_usage, alone.continuous_usage) == (False, False)


@pytest.mark.parametrize("prompt", [[1, 2, 300_000], [[1, 2, 300_000]]])
def test_a_prompt_may_be_token_ids(prompt: object) -> None:
    assert completion(prompt=prompt).prompt == text_of([1, 2, 300_000])


def test_one_prompt_in_a_list_is_one_prompt() -> None:
    assert completion(prompt=["hello"]) == completion()


def test_content_may_come_in_parts_and_be_absent_beside_tool_calls() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert chat(messages=[{"role": "user", "content": parts}]) == chat()
    call = {"id": "1", "type": "function"}
    with_call = chat(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert with_call.prompt == chat_prompt([PromptMessage("assistant", json.dumps(call, sort_keys=True))])


def test_bad_json_is_a_400_in_vllms_words() -> None:
    with pytest.raises(ApiError) as caught:
        parse_generation(Endpoint.CHAT, "application/json", b"{bad", SERVED)
    assert caught.value.content() == {
        "error": {
            "message": "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', "
            "'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}",
            "type": "Bad Request",
            "param": "body.1",
            "code": 400,
        }
    }


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"[1]", b"", b'"text"'])
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_generation(Endpoint.CHAT, "application/json", body, SERVED)
    assert (caught.value.status, caught.value.type) == (400, "Bad Request")


def test_only_json_is_read() -> None:
    with pytest.raises(ApiError) as caught:
        parse_generation(Endpoint.CHAT, "text/plain", json.dumps(CHAT).encode(), SERVED)
    assert caught.value.status == 400


def test_an_unknown_model_is_a_404_in_vllms_words() -> None:
    assert chat_fault(model="nope") == ApiError(
        404, "NotFoundError", "The model `nope` does not exist. Valid aliases: base, adapter.", "model"
    )


def test_a_negative_temperature_is_a_400_in_vllms_words() -> None:
    message = "temperature must be non-negative, got -3.0. (parameter=temperature, value=-3.0)"
    assert chat_fault(temperature=-3) == ApiError(400, "BadRequestError", message, "temperature")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "body.messages"),
        ({"messages": "hello"}, "body.messages"),
        ({"messages": [{"content": "hello"}]}, "body.role"),
        ({"max_tokens": "many"}, "body.max_tokens"),
        ({"max_tokens": True}, "body.max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream": "yes"}, "body.stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "body.stream_options"),
        ({"n": 257}, "n"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
    ],
)
def test_bad_fields_of_a_chat_are_named(fields: dict[str, Any], param: str) -> None:
    fault = chat_fault(**fields)
    assert (fault.status, fault.param) == (400, param)


@pytest.mark.parametrize(
    "prompt", [None, "", [], ["a", 1], ["a", ""], [[1], [-1]], [-1], [2**32], [True], [1.5], {"a": 1}]
)
def test_prompts_that_are_none(prompt: object) -> None:
    assert completion_fault(prompt=prompt).status == 400


def test_more_output_than_context_is_a_400_in_vllms_words() -> None:
    with pytest.raises(ApiError) as caught:
        check_length(chat(max_tokens=100_000), prompt_tokens=22, context_tokens_max=2048)
    message = (
        "max_tokens=100000 cannot be greater than max_model_len=2048. Please request fewer output tokens. "
        "(parameter=max_tokens, value=100000)"
    )
    assert caught.value == ApiError(400, "BadRequestError", message, "max_tokens")


def test_a_prompt_beyond_the_context_is_a_400_in_vllms_words() -> None:
    with pytest.raises(ApiError) as caught:
        check_length(chat(), prompt_tokens=5_000, context_tokens_max=2048)
    message = (
        "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=2049)"
    )
    assert caught.value == ApiError(400, "BadRequestError", message, "input_tokens")


def test_prompt_and_output_share_the_context() -> None:
    check_length(chat(max_tokens=48), prompt_tokens=2000, context_tokens_max=2048)
    with pytest.raises(ApiError, match="BadRequestError"):
        check_length(chat(max_tokens=49), prompt_tokens=2000, context_tokens_max=2048)
