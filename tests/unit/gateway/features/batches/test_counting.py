from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.vocabulary import GatewayId, RequestId
from gateway.door.parse import read_caller, read_request
from gateway.door.settings import HttpSettings
from gateway.features.batches.counting import FileCounter, FileCounts, RefusedLine
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH, RESPONSES_PATH
from gateway.request.usage import prompt_guess
from tests.support.core import US

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}


def counted(*bodies: dict[str, Any], endpoint: str = CHAT_PATH, mean: float | None = None) -> FileCounter:
    counter = FileCounter(1_024, mean)
    for number, body in enumerate(bodies, 1):
        counter.take(number, endpoint, json.dumps({"model": "m"} | body).encode())
    return counter


def chat(text: str = "hello", **others: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **others}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT_PATH, chat("a question of some length", tools=[{"type": "function"}])),
        (CHAT_PATH, {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, PICTURE]}]}),
        (COMPLETIONS_PATH, {"prompt": "once upon a time"}),
        (RESPONSES_PATH, {"input": "hello", "instructions": "be brief"}),
        (EMBEDDINGS_PATH, {"input": ["one", "two"]}),
    ],
)
def test_prompts_count_as_the_gateway_counts_them(endpoint: str, body: dict[str, Any]) -> None:
    settings = HttpSettings(GatewayId("us-1"), US, prefix_block_bytes=16, prefix_blocks_max=8)
    raw = json.dumps({"model": "m"} | body).encode()
    read = read_request(endpoint, raw, read_caller({}, RequestId("r"), settings), settings).profile
    (counts,) = counted(body, endpoint=endpoint).counts
    assert (counts.prompt_bytes, counts.prompt_tokens) == (read.prompt_bytes, prompt_guess(read))


def test_answers_count_by_their_maximum_and_are_expected_as_long_as_others() -> None:
    bodies = (chat(max_tokens=50), chat(max_completion_tokens=300), chat(), chat(max_tokens=-1))
    (counts,) = counted(*bodies, mean=200.0).counts
    assert (counts.lines, counts.output_tokens_max, counts.unstated) == (4, 50 + 300 + 1_024, 1)
    assert counts.output_tokens == 50 + 200 + 200


def test_without_a_mean_the_longest_answers_are_expected() -> None:
    (counts,) = counted(chat(max_tokens=50), chat()).counts
    assert counts.output_tokens == counts.output_tokens_max == 50 + 1_024


def test_embeddings_have_no_answer() -> None:
    (counts,) = counted({"input": "x"}, endpoint=EMBEDDINGS_PATH, mean=200.0).counts
    assert (counts.lines, counts.output_tokens, counts.output_tokens_max, counts.unstated) == (1, 0, 0, 0)


def test_lines_that_would_be_refused_are_told_and_not_counted() -> None:
    counter = counted(chat(), chat(kv_transfer_params={}), chat(max_tokens="many"))
    assert [each.lines for each in counter.counts] == [1]
    assert (counter.refusals, [each.line for each in counter.refused]) == (2, [2, 3])
    assert counter.refused[0] == RefusedLine(2, "kv_transfer_params: only gateways tell engines this")


def test_apis_and_models_are_told_apart_up_to_a_bound() -> None:
    counter = counted(chat(model="b"), chat(model="a"), chat(model="a"))
    counter.take(4, COMPLETIONS_PATH, b'{"model":"a","prompt":"x"}')
    counter.take(5, "/v1/images", b'{"model":"a"}')
    told = [(each.endpoint, each.model, each.lines) for each in counter.counts]
    assert told == [(CHAT_PATH, "a", 2), (CHAT_PATH, "b", 1), (COMPLETIONS_PATH, "a", 1)]
    assert counter.refused == [RefusedLine(5, "the gateway does not know this API")]
    many = counted(*(chat(model=f"m{number}") for number in range(150)))
    assert len(many.counts) == 100
    assert many.counts[0] == FileCounts(CHAT_PATH, "m0", 1, 38, 10, 1_024, 1_024, 1)


def test_the_list_of_refused_lines_has_a_bound() -> None:
    counter = counted(*[chat(bootstrap_host="x")] * 150)
    assert (counter.refusals, len(counter.refused)) == (150, 100)
