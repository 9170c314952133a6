"""Hints in the form of NVIDIA Dynamo's `nvext.agent_hints`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.core.vocabulary import HINTED_PRIORITY_MAX, HINTED_TOKENS_MAX, Hints
from gateway.request.nvext import hints_in


def read(value: Any) -> Hints:
    return hints_in(msgspec.Raw(json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, Hints()),
        ({"osl": 1024}, Hints(output_tokens=1024)),
        ({"osl": 2**40}, Hints(output_tokens=HINTED_TOKENS_MAX)),
        ({"priority": 5}, Hints(priority=5)),
        ({"priority": -5}, Hints()),
        ({"priority": 10**6}, Hints(priority=1000)),
        ({"strict_priority": 2, "priority": 7}, Hints(priority=2 * 1001 + 7)),
        ({"speculative_prefill": True}, Hints(comes_again=True)),
        ({"speculative_prefill": False, "osl": None}, Hints()),
        ({"latency_sensitivity": 1.5, "unknown": {"a": []}}, Hints()),
    ],
)
def test_each_hint_is_taken_for_what_dynamo_says_it_is(told: dict[str, Any], expected: Hints) -> None:
    assert read({"agent_hints": told, "annotations": ["x"], "token_data": [1, 2]}) == expected


@pytest.mark.parametrize("value", [None, {}, {"agent_hints": None}, {"extra_fields": ["worker_id"]}])
def test_extensions_without_hints_hint_nothing(value: Any) -> None:
    assert read(value) == Hints()


def test_a_higher_tier_precedes_any_priority_of_a_lower_one() -> None:
    assert read({"agent_hints": {"strict_priority": 1}}).priority > read({"agent_hints": {"priority": 10**9}}).priority
    assert read({"agent_hints": {"strict_priority": 10**9, "priority": 10**9}}).priority <= HINTED_PRIORITY_MAX


@pytest.mark.parametrize(
    "value",
    [3, [], "x", {"agent_hints": []}, *({"agent_hints": {name: "5"}} for name in ("osl", "priority"))],
)
def test_hints_of_another_type_are_a_fault(value: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(value)


def test_a_negative_length_is_a_fault() -> None:
    with pytest.raises(msgspec.ValidationError):
        read({"agent_hints": {"osl": -1}})
