from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.request.legs import RequestSummary
from gateway.request.usage import prompt_guess, tokens_used
from tests.support.core import profile

ASKED = replace(profile("r1"), prompt_bytes=399, output_tokens_max=50)


@pytest.mark.parametrize(
    ("summary", "prompt", "output"),
    [
        (RequestSummary(), (0, "usage"), (0, "usage")),
        (RequestSummary(first_token_ns=1, prompt_tokens=22, output_tokens=6), (22, "usage"), (6, "usage")),
        (RequestSummary(first_token_ns=1, prompt_tokens=22), (22, "usage"), (0, "usage")),
        (RequestSummary(first_token_ns=1, is_event_stream=True, content_events=7), (100, "bytes"), (7, "events")),
        (
            RequestSummary(first_token_ns=1, is_event_stream=True, content_events=7, prompt_tokens=22),
            (22, "usage"),
            (7, "events"),
        ),
        (
            RequestSummary(first_token_ns=1, is_event_stream=True, content_events=7, output_tokens=6),
            (100, "bytes"),
            (13, "events"),
        ),
        (RequestSummary(first_token_ns=1, answer_bytes=41), (100, "bytes"), (11, "bytes")),
        (RequestSummary(first_token_ns=1, answer_bytes=100_000), (100, "bytes"), (50, "bytes")),
        (RequestSummary(prompt_taken=True), (100, "bytes"), (0, "bytes")),
        (
            RequestSummary(first_token_ns=1, prompt_tokens=9, output_tokens=9, generates=False),
            (0, "usage"),
            (0, "usage"),
        ),
    ],
)
def test_the_engine_counts_else_events_do_else_bytes(
    summary: RequestSummary, prompt: tuple[int, str], output: tuple[int, str]
) -> None:
    used = tokens_used(ASKED, summary)
    assert (used.prompt, used.prompt_counted) == prompt
    assert (used.output, used.output_counted) == output
    assert used.total == prompt[0] + output[0]


def test_a_long_answer_that_nobody_counted_is_not_taken_for_all_text() -> None:
    unbounded = replace(ASKED, output_tokens_max=None)
    assert tokens_used(unbounded, RequestSummary(first_token_ns=1, answer_bytes=9_000_000)).output == 1024


def test_a_prompt_is_at_least_as_many_tokens_as_its_bytes_suggest() -> None:
    assert [prompt_guess(replace(ASKED, prompt_bytes=size)) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
