"""Hints in the form of NVIDIA Dynamo's `nvext.agent_hints`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import HINTED_PRIORITY_MAX, HINTED_TOKENS_MAX, Hints
from gateway.request.bodies import Body, BodyFault, BodyFaultKind
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


# Removal from the body


def without_extensions(body: bytes) -> bytes:
    return msgspec.json.decode(body, type=Body).without_extensions(body)


def members(body: bytes) -> Any:
    """Members of the outermost object, in order, also those that are named twice."""
    return json.loads(body, object_pairs_hook=list)


space = st.text(" \t\n\r", max_size=3)
others = st.sampled_from(
    ['"x" : {"nvext":1}', '"y":"\\"nvext\\":{"', '"z":[1,"nvext"]', '"\\\\nvext":0', '"\\"nvext":0', '"u":"\\u006e"']
)
values = st.sampled_from(['{"backend_instance_id":3}', "null", '"a,}b"', "[1,{}]", "7", "{}"])
spellings = st.sampled_from(["nvext", "\\u006evext", "nve\\u0078t"])


@given(st.lists(others, max_size=4), st.lists(st.tuples(st.integers(0, 6), spellings, values), max_size=4), st.data())
def test_removed_extensions_are_gone_and_every_other_member_is_as_it_was(
    kept: list[str], named: list[tuple[int, str, str]], data: st.DataObject
) -> None:
    """Members stand among others, as spelt, up to four times."""
    parts = ['"model" :"m"', *kept]
    for at, spelling, value in named:
        parts.insert(at % (len(parts) + 1), f'"{spelling}"{data.draw(space)}:{data.draw(space)}{value}')
    body = ("{" + f"{data.draw(space)},{data.draw(space)}".join(parts) + data.draw(space) + "}").encode()
    assert members(without_extensions(body)) == [each for each in members(body) if each[0] != "nvext"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_length_of_a_body_does_not_matter(at: int) -> None:
    parts = ['"model":"m"', '"prompt":"%s"' % ("y" * 2**21)]
    plain = "{" + ",".join(parts) + "}"
    parts.insert(at, '"nvext":{"backend_instance_id":3}')
    assert without_extensions(("{" + ",".join(parts) + "}").encode()) == plain.encode()


def test_too_many_extensions_in_one_body_are_a_fault() -> None:
    with pytest.raises(BodyFault, match="more than four") as refused:
        without_extensions(b'{"model":"m"' + b',"nvext":{}' * 5 + b"}")
    assert (refused.value.kind, refused.value.param) == (BodyFaultKind.INVALID_FIELD, "nvext")
