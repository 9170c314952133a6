from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.vocabulary import GatewayId, RequestId
from gateway.door.parse import read_caller, read_request
from gateway.door.settings import HttpSettings
from gateway.features.batches.counting import FileCounter, RefusedLine
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH, RESPONSES_PATH
from gateway.request.usage import prompt_guess
from tests.support.batch_outlooks import outlook_of
from tests.support.core import US

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}


def counted(*bodies: dict[str, Any], endpoint: str = CHAT_PATH, **told: Any) -> FileCounter:
    counter = FileCounter(endpoint, "m", outlook_of(**told))
    for number, body in enumerate(bodies, 1):
        counter.take(number, json.dumps({"model": "m"} | body).encode())
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
    counts = counted(body, endpoint=endpoint).counts
    assert (counts.prompt_bytes, counts.prompt_tokens) == (read.prompt_bytes, prompt_guess(read))


def test_answers_count_by_their_maximum_and_are_expected_as_long_as_others() -> None:
    """An implausible maximum counts as none, as the gateway reserves it."""
    bodies = (chat(max_tokens=50), chat(max_completion_tokens=300), chat(), chat(max_tokens=-1), chat(max_tokens=2**40))
    counts = counted(*bodies, output_tokens=200.0).counts
    assert (counts.lines, counts.output_tokens_max, counts.unstated) == (5, 50 + 300 + 3 * 1_024, 3)
    assert counts.output_tokens == 50 + 4 * 200


def test_without_a_mean_the_longest_answers_are_expected() -> None:
    counts = counted(chat(max_tokens=50), chat()).counts
    assert counts.output_tokens == counts.output_tokens_max == 50 + 1_024


def test_embeddings_have_no_answer() -> None:
    counts = counted({"input": "x"}, endpoint=EMBEDDINGS_PATH, output_tokens=200.0).counts
    assert (counts.lines, counts.output_tokens, counts.output_tokens_max, counts.unstated) == (1, 0, 0, 0)


def test_lines_that_would_be_refused_are_told_and_not_counted() -> None:
    counter = counted(chat(), chat(kv_transfer_params={}), chat(max_tokens="many"), chat(nvext={"agent_hints": 1}))
    assert (counter.counts.lines, counter.refusals, [each.line for each in counter.refused]) == (1, 3, [2, 3, 4])
    assert counter.refused[0] == RefusedLine(2, "kv_transfer_params: only gateways tell engines this")


@pytest.mark.parametrize(
    ("told", "refusals"), [({}, 1), ({"pass_priority": True}, 0), ({"pass_priority": True, "body_bytes_max": 60}, 1)]
)
def test_lines_are_refused_by_the_gateways_settings(told: dict[str, Any], refusals: int) -> None:
    assert counted(chat(priority=1), **told).refusals == refusals


def test_the_list_of_refused_lines_has_a_bound() -> None:
    counter = counted(*[chat(bootstrap_host="x")] * 150)
    assert (counter.refusals, len(counter.refused)) == (150, 100)
