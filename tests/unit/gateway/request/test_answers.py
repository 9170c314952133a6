from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import RequestId
from gateway.door.shapes import ErrorShape, refusal_in_shape
from gateway.engines.answers import read_error
from gateway.request.answer_events import TokenUsage
from gateway.request.answers import TOKENS_MAX, AnswerFault, first_id_of, inspect_answer, usage_at_end
from gateway.request.engine_errors import in_openai_shape
from gateway.request.event_scanner import EventScanner
from tests.fakes.engine import GOOD_STREAM

RESPONSE = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None, "usage": None}
COUNTED = {"input_tokens": 14, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 16}


def _facts(body: bytes) -> tuple[AnswerFault | None, TokenUsage | None, str | None]:
    found = inspect_answer(body)
    return found.fault, found.usage, found.response_id


def test_usage_is_read() -> None:
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    assert _facts(body.encode()) == (None, TokenUsage(3, 4, None), None)


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (json.dumps({"usage": COUNTED, "user": None}).encode(), TokenUsage(14, 16, 8)),
        (
            b'...]}}],"usage" : {"prompt_tokens":3,"completion_tokens":4},"prompt_logprobs":null}',
            TokenUsage(3, 4, None),
        ),
        (b'{"usage":{"completion_tokens":1}},"usage":{"completion_tokens":4}}', TokenUsage(None, 4, None)),
        (json.dumps({"content": '"usage":{"completion_tokens":0}'}).encode(), None),
        (b'"usage":{"completion_tokens":', None),
        (b'"usage":{nonsense}', None),
        (b'"usage":null}', None),
        (b"", None),
    ],
)
def test_the_end_of_an_answer_tells_its_usage(tail: bytes, found: TokenUsage | None) -> None:
    assert usage_at_end(tail) == found


def test_a_response_says_its_id() -> None:
    body = json.dumps({**RESPONSE, "status": "incomplete", "usage": COUNTED}).encode()
    assert _facts(body) == (None, TokenUsage(14, 16, 8), "resp_1")
    assert inspect_answer(b'{"id":"chatcmpl-1","object":"chat.completion"}').response_id is None


@pytest.mark.parametrize(
    ("beginning", "found"),
    [
        (b'{"id":"resp_1","created_at":1,"output":[', "resp_1"),
        (b' {\n "id": "resp_1"', "resp_1"),
        (b'{"output":[{"id":"msg_1"', None),
        (b'{"id":"%b"' % (b"x" * 300), None),
    ],
)
def test_an_answer_too_large_to_read_says_its_id_first(beginning: bytes, found: str | None) -> None:
    assert first_id_of(beginning) == found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html>",
        b'{"choices":[{"finish_reason":"abort"}]}',
        b'{"object":"response","status":"cancelled"}',
        b'{"object":"response","status":"failed","error":{"code":"server_error"}}',
        b'{"type":"message","stop_reason":null}',
        b'{"error":{"code":500}}',
        b'{"choices":[{"finish_reason":"stop"}',
        b'{"choices":{}}',
        b'{"choices":"many"}',
        b'{"choices":[[]]}',
        b'{"choices":[null]}',
        b'{"choices":[{"finish_reason":[]}]}',
        b'{"choices":[{"finish_reason":{"a":1}}]}',
        b'{"choices":[{"finish_reason":7}]}',
        b'{"choices":[{"message":{"content":"\xff"}}]}',
        b'{"choices":[],"logprob":NaN}',
        b'{"choices":[],"logprob":-Infinity}',
        b'{"choices":' + b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'"\xed\xa0\x80"',
        b'{"choices":[],"created":' + b"9" * 5_000 + b"}",
    ],
)
def test_what_is_no_answer_is_a_fault(body: bytes) -> None:
    assert inspect_answer(body).fault is not None


def test_faults_quote_nothing() -> None:
    fault = inspect_answer(b'{"error":{"message":"your prompt was: secret","code":500}}').fault
    assert fault is not None
    assert "secret" not in fault.detail


def test_tokens_from_the_cache_are_counted_beside_the_others_and_added() -> None:
    counted = {
        "input_tokens": 5,
        "cache_read_input_tokens": 16,
        "cache_creation_input_tokens": 1,
        "output_tokens": 2,
    }
    body = json.dumps({"type": "message", "stop_reason": "end_turn", "usage": counted})
    assert _facts(body.encode()) == (None, TokenUsage(22, 2, 16), None)


@pytest.mark.parametrize(
    "count",
    ["-1", "1.5", "1e3", "true", '"7"', "null", "[]", "{}", "1" + "0" * 30, "-" + "9" * 40, "16777217"],
)
def test_a_count_that_cannot_be_is_none(count: str) -> None:
    older = f'{{"choices":[],"usage":{{"prompt_tokens":{count},"completion_tokens":4}}}}'
    assert _facts(older.encode()) == (None, TokenUsage(None, 4, None), None)
    newer = f'{{"usage":{{"input_tokens":3,"output_tokens":{count},"cache_read_input_tokens":{count}}}}}'
    assert _facts(newer.encode()) == (None, TokenUsage(3, None, None), None)


def test_the_largest_count_is_one_that_a_journal_can_hold() -> None:
    body = {
        "usage": dict.fromkeys(("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), TOKENS_MAX)
    }
    usage = inspect_answer(json.dumps(body).encode()).usage
    assert usage is not None
    assert usage.prompt_tokens == 3 * TOKENS_MAX < 2**31


@pytest.mark.parametrize("usage", ["7", '"much"', "[]", "[[1]]", "true", "{}"])
def test_a_usage_that_is_none_spoils_no_answer(usage: str) -> None:
    assert inspect_answer(f'{{"choices":[{{"finish_reason":"stop"}}],"usage":{usage}}}'.encode()).fault is None


_WORDS = """id object type error usage choices response message status code detail error_type stop_reason delta role
    model finish_reason prompt_tokens completion_tokens prompt_tokens_details input_tokens output_tokens"""
_NAMES = st.sampled_from(_WORDS.split())
_ODD = st.sampled_from(
    [
        "null",
        "true",
        "-1",
        "1e400",
        "1" + "0" * 40,
        "1.5",
        '""',
        '"x"',
        '"error"',
        '"\u0664"',
        "[]",
        "[[1]]",
        "{}",
        "NaN",
    ]
)


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.builds('"{}":{}'.format, _NAMES, inner)
    return st.builds(lambda pairs: "{" + ",".join(pairs) + "}", st.lists(pair, max_size=4))


ODD_JSON = st.recursive(_ODD, lambda inner: _objects(inner) | st.builds("[{},{}]".format, inner, inner), max_leaves=12)


@given(ODD_JSON | st.text(), st.sampled_from([400, 404, 429, 500, 503]))
def test_no_json_is_too_odd_for_whoever_reads_it(text: str, status: int) -> None:
    """Inspection never raises: an answer is sound, or it is a fault of the target's, in a shape that a client can
    read."""
    body = text.encode()
    answer = inspect_answer(body)
    fault = answer.fault
    if fault is not None:
        assert "error" in json.loads(in_openai_shape(fault.body, fault.code or 500))
    for shape in ErrorShape:
        assert json.loads(refusal_in_shape(body, status, shape, RequestId("r1")))["error"]
    assert read_error(status, body, is_pinned=True).body
    for name in (b"", b"event: error\n"):
        for before in (b"", GOOD_STREAM[0]):
            scanner = EventScanner()
            scanner.feed(before + name + b"data: " + body.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n")
            if scanner.fault is None:
                scanner.close()
            assert scanner.is_finished in (True, False)
            assert scanner.usage is None or (scanner.usage.prompt_tokens or 0) <= TOKENS_MAX


def test_what_a_decode_worker_gives_up_is_no_answer() -> None:
    body = b'{"choices":[{"index":0,"text":"a","finish_reason":"stop","stop_reason":"recomputed"}]}'
    fault = inspect_answer(body, may_give_up=True).fault
    assert fault is not None
    assert fault.code == 503
    assert inspect_answer(body).fault is None
