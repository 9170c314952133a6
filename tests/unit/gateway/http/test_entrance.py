from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.http.entrance import credential_of, tokens_used
from gateway.request.legs import RequestSummary


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"X-Api-Key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "other"}, "other"),
        ({"authorization": "Basic abc"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({}, ""),
    ],
)
def test_a_credential_comes_as_either_kind_of_client_sends_it(headers: dict[str, str], expected: str) -> None:
    assert credential_of(CIMultiDict(headers)) == expected


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (RequestSummary(), 0),
        (RequestSummary(started=True, prompt_tokens=5), 0),
        (RequestSummary(first_token_ns=1, prompt_tokens=22, output_tokens=6), 28),
        (RequestSummary(first_token_ns=1, is_event_stream=True, output_events=7), 107),
        (RequestSummary(first_token_ns=1, is_event_stream=True, output_events=7, prompt_tokens=22), 29),
        (RequestSummary(first_token_ns=1), 150),
    ],
)
def test_tokens_are_counted_by_the_engine_else_by_events_else_guessed(summary: RequestSummary, expected: int) -> None:
    assert tokens_used(summary, prompt_guess=100, output_guess=50) == expected
