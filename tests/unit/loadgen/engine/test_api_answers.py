from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loadgen.engine.api_answers import FINGERPRINT, ApiAnswer, busy, error_event
from loadgen.engine.api_requests import GenerationRequest
from loadgen.engine.tokens import continuation, token_ids
from loadgen.engine.vocabulary import Endpoint, FinishReason

PROMPT = b"abcdefgh"
OUTPUT = continuation("m", PROMPT, 5)
REQUEST = GenerationRequest(
    Endpoint.CHAT, "m", PROMPT, None, ignore_eos=False, stream=True, cache_salt="", include_usage=False
)


def answer(**changes: Any) -> ApiAnswer:
    return ApiAnswer(replace(REQUEST, **changes), "id-1", 1_795_242_050, 2, OUTPUT, cached_tokens=1)


def events(body: bytes) -> list[str]:
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def words() -> list[str]:
    return [OUTPUT[i : i + 4].decode() for i in range(0, len(OUTPUT), 4)]


CHUNK = '{"id":"id-1","object":"chat.completion.chunk","created":1795242050,"model":"m","choices":'


def test_a_chat_stream_is_vllms_byte_for_byte() -> None:
    first, *rest = words()
    *middle, last = rest
    plain = ',"logprobs":null,"finish_reason":null'
    assert events(answer().piece(0, 5, FinishReason.LENGTH)) == [
        CHUNK
        + '[{"index":0,"delta":{"role":"assistant","content":""}'
        + plain
        + '}],"prompt_token_ids":null,"prompt_text":null}',
        *(
            CHUNK + f'[{{"index":0,"delta":{{"content":"{word}"}}' + plain + ',"token_ids":null}]}'
            for word in (first, *middle)
        ),
        CHUNK
        + f'[{{"index":0,"delta":{{"content":"{last}"}},"logprobs":null,"finish_reason":"length","stop_reason":null,'
        + f'"token_ids":null}}],"system_fingerprint":"{FINGERPRINT}"}}',
        "[DONE]",
    ]


def test_a_completion_stream_is_vllms_byte_for_byte() -> None:
    head = '{"id":"id-1","object":"text_completion","created":1795242050,"model":"m","choices":[{"index":0,"text":"'
    tail = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
    last = words()[-1]
    assert events(answer(endpoint=Endpoint.COMPLETION).piece(0, 5, FinishReason.STOP)) == [
        *(f'{head}{word}","logprobs":null,"finish_reason":null,{tail}}}' for word in words()[:-1]),
        f'{head}{last}","logprobs":null,"finish_reason":"stop",{tail},"system_fingerprint":"{FINGERPRINT}"}}',
        "[DONE]",
    ]


@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("continuous_usage", [False, True])
@pytest.mark.parametrize("return_token_ids", [False, True])
def test_pieces_add_up_to_the_same_bytes_wherever_they_are_cut(
    endpoint: Endpoint, include_usage: bool, continuous_usage: bool, return_token_ids: bool
) -> None:
    whole = answer(
        endpoint=endpoint,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous_usage,
        return_token_ids=return_token_ids,
    )
    at_once = whole.piece(0, 5, FinishReason.LENGTH)
    one_by_one = b"".join(whole.piece(i, i + 1, FinishReason.LENGTH if i == 4 else None) for i in range(5))
    assert whole.piece(0, 2, None) + whole.piece(2, 5, FinishReason.LENGTH) == at_once
    assert one_by_one == at_once


def test_usage_comes_in_an_event_without_choices_which_takes_the_fingerprint() -> None:
    *_, finish, usage, done = events(answer(include_usage=True).piece(0, 5, FinishReason.LENGTH))
    assert "system_fingerprint" not in finish
    assert usage == (
        CHUNK + '[],"usage":{"prompt_tokens":2,"total_tokens":7,"completion_tokens":5,'
        '"prompt_tokens_details":{"cached_tokens":1,"created_cache_tokens":0}},'
        f'"system_fingerprint":"{FINGERPRINT}"}}'
    )
    assert done == "[DONE]"


def test_continuous_usage_counts_in_every_event() -> None:
    stream = answer(include_usage=True, continuous_usage=True).piece(0, 5, FinishReason.LENGTH)
    counts = [json.loads(event)["usage"]["completion_tokens"] for event in events(stream)[:-1]]
    assert counts == [0, 1, 2, 3, 4, 5, 5]


def test_token_ids_of_a_chat_stream() -> None:
    opening, *chunks, _done = events(answer(return_token_ids=True).piece(0, 5, FinishReason.LENGTH))
    assert json.loads(opening)["prompt_token_ids"] == list(token_ids(PROMPT))
    ids = [id_ for chunk in chunks for id_ in json.loads(chunk)["choices"][0]["token_ids"]]
    assert ids == list(token_ids(OUTPUT))


def test_token_ids_of_a_completion_stream_come_with_the_prompts_in_the_first_event() -> None:
    stream = answer(endpoint=Endpoint.COMPLETION, return_token_ids=True).piece(0, 5, FinishReason.LENGTH)
    prompts = [json.loads(event)["choices"][0]["prompt_token_ids"] for event in events(stream)[:-1]]
    assert prompts == [list(token_ids(PROMPT)), None, None, None, None]


def test_a_stopping_engine_ends_a_stream_so_that_it_looks_like_success() -> None:
    *_, last_text, end, done = events(answer().piece(0, 2, FinishReason.ABORT))
    assert json.loads(last_text)["choices"][0]["delta"]["content"] == words()[1]
    assert json.loads(end)["choices"][0]["finish_reason"] == "abort"
    assert json.loads(end)["system_fingerprint"] == FINGERPRINT
    assert done == "[DONE]"


COMMON_KEYS = ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"]
TRANSFER_KEYS = ["kv_transfer_params", "ec_transfer_params", "metrics"]
PROMPT_KEYS = ["prompt_logprobs", "prompt_token_ids"]
FINISH_KEYS = ["logprobs", "finish_reason", "stop_reason", "token_ids"]
USAGE_KEYS = [
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
]
MESSAGE_KEYS = ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"]


def test_a_whole_chat_has_vllms_keys_in_vllms_order() -> None:
    body = json.loads(answer().whole(5, FinishReason.STOP))
    (choice,) = body["choices"]
    assert list(body) == [*COMMON_KEYS, *PROMPT_KEYS, "prompt_text", *TRANSFER_KEYS]
    assert list(choice) == ["index", "message", *FINISH_KEYS, "routed_experts"]
    assert list(body["usage"]) == USAGE_KEYS
    assert list(choice["message"]) == MESSAGE_KEYS
    assert (choice["message"]["content"], choice["finish_reason"]) == (OUTPUT.decode(), "stop")
    assert (body["object"], body["usage"]["total_tokens"]) == ("chat.completion", 7)
    assert body["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 1,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }


def test_a_whole_completion_has_vllms_keys_in_vllms_order() -> None:
    body = json.loads(answer(endpoint=Endpoint.COMPLETION, return_token_ids=True).whole(2, FinishReason.LENGTH))
    (choice,) = body["choices"]
    assert list(body) == [*COMMON_KEYS, *TRANSFER_KEYS]
    assert list(choice) == ["index", "text", *FINISH_KEYS, *PROMPT_KEYS, "routed_experts"]
    assert (body["object"], choice["text"]) == ("text_completion", OUTPUT[:8].decode())
    assert choice["token_ids"] == list(token_ids(OUTPUT[:8]))
    assert choice["prompt_token_ids"] == list(token_ids(PROMPT))


def test_an_error_inside_a_stream_is_written_with_spaces() -> None:
    assert error_event(busy()) == (
        b'data: {"error": {"message": "The engine is currently busy and cannot accept new requests. Please try again '
        b'later or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}\n\n'
    )
