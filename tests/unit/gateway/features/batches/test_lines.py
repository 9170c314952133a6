from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.batches.lines import (
    BATCH_CANCELLED,
    BATCH_EXPIRED,
    FAULTS_MAX,
    FoundResult,
    LineChecker,
    LineResult,
    ResultError,
    is_error,
    read_line,
    result_of,
    wait_before_retry_s,
    whole_results,
)

URL = "/v1/chat/completions"
OTHER = ResultError("engine_failed_midstream", "no")


def line(custom_id: object = "a", **changes: object) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m"}, **changes}
    return json.dumps(fields).encode() + b"\n"


def codes(*lines: bytes, lines_max: int = 100, line_bytes_max: int = 1000) -> list[tuple[int | None, str]]:
    checker = LineChecker(URL, lines_max, line_bytes_max)
    for each in lines:
        if not checker.take(each):
            break
    return [(fault.line, fault.code) for fault in checker.end()]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"[1]\n", "invalid_json_line"),
        (b'{"custom_id": "\xff"}\n', "invalid_json_line"),
        (b"[" * 900, "invalid_json_line"),
        (b'{"custom_id": "b"}\n', "missing_required_parameter"),
        (line(1), "invalid_type"),
        (line(""), "invalid_custom_id"),
        (line("a"), "duplicate_custom_id"),
        (line("b", method="GET"), "invalid_method"),
        (line("b", url="/v1/embeddings"), "invalid_url"),
        (line("b", body={}), "invalid_request"),
        (line("b", body={"model": "m", "stream": True}), "invalid_request"),
        (line("b", body={"model": "other"}), "mismatched_model"),
        (line("b", body={"model": "m", "input": "x" * 1000}), "line_too_long"),
    ],
)
def test_a_fault_has_the_number_of_its_line(bad: bytes, code: str) -> None:
    assert codes(line("a"), b"\n", bad) == [(3, code)]


def test_a_file_has_at_least_one_request_and_a_limit() -> None:
    assert codes(b"\n") == [(None, "empty_file")]
    assert codes(line("a"), line("b")) == []
    assert codes(line("a"), line("b"), line("c"), lines_max=2) == [(3, "too_many_tasks")]
    assert len(codes(*[b"x\n"] * (FAULTS_MAX + 5), lines_max=1000)) == FAULTS_MAX


def test_a_long_line_that_begins_blank_is_too_long() -> None:
    assert codes(line("a"), b" " * 1001) == [(2, "line_too_long")]


def test_no_fault_quotes_a_line() -> None:
    checker = LineChecker(URL, 10, 1000)
    for each in (b'{"secret": "hunter2"\n', line("hunter2"), line("hunter2"), line("b", url="hunter2")):
        checker.take(each)
    assert "hunter2" not in str(checker.end())


def test_a_body_is_passed_on_byte_for_byte() -> None:
    told = b'{"custom_id":"a","method":"POST","url":"/v1/x","body":{"model" : "m",  "n":1.50}}\n'
    assert read_line(told).body == b'{"model" : "m",  "n":1.50}'


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=8, unique=True),
    st.data(),
)
def test_whatever_is_left_of_a_file_is_reconciled(custom_ids: list[str], data: st.DataObject) -> None:
    """A file that is cut anywhere holds a prefix of the results, and the rest is known to be missing."""
    written = [result_of("r", each, 200, "q", b'{"n": "\\n"}').encoded() for each in custom_ids]
    whole = b"".join(written)
    cut = data.draw(st.integers(0, len(whole)))
    left = whole[:cut] + data.draw(st.sampled_from([b"", bytes(7), b"\0\n", b'{"id":"r"}\n']))
    found = list(whole_results(left.splitlines(keepends=True)))
    ends = [sum(map(len, written[: place + 1])) for place in range(len(written))]
    expected = [each for each, end in zip(custom_ids, ends, strict=True) if end <= cut]
    assert [each.custom_id for each in found] == expected
    assert sum(each.length for each in found) == ([0, *ends][len(expected)])


def test_an_answer_becomes_one_line() -> None:
    result = result_of("r", "a", 200, "q", b'{\n "a": [1,\n 2]}')
    assert result.encoded().count(b"\n") == 1
    assert json.loads(result.encoded())["response"] == {"status_code": 200, "request_id": "q", "body": {"a": [1, 2]}}
    odd = result_of("r", "a", 200, "q", b"<html>")
    assert (odd.is_success, isinstance(odd, LineResult), odd.error is not None) == (False, True, True)


def test_each_result_is_found_again_however_deep_its_answer_is() -> None:
    for depth in range(1, 1200):
        encoded = result_of("r", "a", 200, "q", b"[" * depth + b"]" * depth).encoded()
        assert list(whole_results([encoded])) == [FoundResult("a", len(encoded), has_run=True)]


@pytest.mark.parametrize(("error", "has_run"), [(BATCH_EXPIRED, False), (BATCH_CANCELLED, False), (OTHER, True)])
def test_lines_that_did_not_run_are_known_by_their_error(error: ResultError, has_run: bool) -> None:
    (found,) = whole_results([LineResult("r", "a", None, error).encoded()])
    assert found.has_run is has_run


def test_models_may_be_mixed_where_the_api_has_no_file() -> None:
    lines = [line("a"), line("b", body={"model": "other"})]
    assert codes(*lines) == [(2, "mismatched_model")]
    checker = LineChecker(URL, 10, 1000, may_mix_models=True)
    assert all(map(checker.take, lines))
    assert checker.end() == ()


@pytest.mark.parametrize(
    ("status", "told_s", "tries", "wait_s"),
    [
        (200, 0.0, 1, None),
        (400, 0.0, 1, None),
        (429, 0.0, 1, 1.0),
        (429, 12.0, 1, 12.0),
        (503, 0.0, 1000, 30.0),
        (504, 0.0, 1000, 30.0),
        (502, 0.0, 4, 8.0),
        (502, 0.0, 5, None),
        (404, 0.0, 5, None),
    ],
)
def test_a_refusal_is_waited_out_and_a_failure_is_not(
    status: int, told_s: float, tries: int, wait_s: float | None
) -> None:
    assert wait_before_retry_s(status, told_s, tries) == wait_s


@pytest.mark.parametrize(
    ("body", "is_it"),
    [
        (b'{"error":{"message":"no","code":"class_not_allowed"}}', True),
        (b'{"error":{"message":"no","code":400}}', False),
        (b'{"error":"class_not_allowed"}', False),
        (b"class_not_allowed", False),
        (b'"\xff"', False),
    ],
)
def test_an_error_is_known_by_its_code(body: bytes, is_it: bool) -> None:
    assert is_error(body, "class_not_allowed") is is_it
