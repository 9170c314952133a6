from __future__ import annotations

import json
import random

import pytest

from gateway.core.vocabulary import Extra
from gateway.request.extras import Withheld
from loadgen.bench.relay import wire

RECIPIENT = wire.Recipient("127.0.0.1:1", "ns-key", {"x-config": "{}"})


def test_prompts_begin_alike_and_then_differ() -> None:
    texts = wire.prompts(8, 2048, random.Random(1))
    assert {len(text) for text in texts} == {2048}
    assert len({text[:512] for text in texts}) == 1
    assert len({text[512:768] for text in texts}) == len(texts)


@pytest.mark.parametrize("tokens", [0, 7])
def test_the_engine_reads_from_a_request_what_the_client_put_there(tokens: int) -> None:
    (wanted,) = wire.requests(["hello"], RECIPIENT, stream_tokens=tokens)
    head, _, body = wanted.payload.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"authorization: Bearer ns-key" in head
    assert b"x-config: {}" in head
    assert wire.read_ask(body) == wire.BenchRequest(is_stream=bool(tokens), tokens=tokens or 32, wants_usage=False)


def test_the_engine_understands_what_relays_make_of_a_request() -> None:
    body = b'{"max_completion_tokens": 9, "stream": true, "stream_options": {"include_usage": true}}'
    assert wire.read_ask(body) == wire.BenchRequest(is_stream=True, tokens=9, wants_usage=True)


def test_the_engine_reads_the_fields_around_a_long_prompt() -> None:
    (wanted,) = wire.requests(["x" * 400_000], RECIPIENT, stream_tokens=16)
    body = wanted.payload.partition(b"\r\n\r\n")[2]
    assert wire.read_ask(body) == wire.BenchRequest(is_stream=True, tokens=16, wants_usage=False)


def test_it_tells_token_ids_where_they_are_asked_for() -> None:
    """Removing the token ids leaves the event that clients without them get."""
    assert wire.read_ask(b'{"max_tokens":9,"stream":true,"return_token_ids":true}').wants_ids
    assert b'"token_ids":[' in wire.TOKEN_EVENT_WITH_ID
    assert Withheld((Extra.TOKEN_IDS,)).feed(wire.TOKEN_EVENT_WITH_ID, is_crossing=False) == wire.TOKEN_EVENT


def test_a_chunk_is_as_long_as_it_says() -> None:
    assert wire.http_chunk(b"x" * 255) == b"ff\r\n" + b"x" * 255 + b"\r\n"
    assert wire.http_chunk(b"") == b"0\r\n\r\n"


def test_padding_makes_a_body_larger_and_no_prompt() -> None:
    (plain,), (padded,) = (
        wire.requests(["hello"], RECIPIENT, stream_tokens=0, padding_bytes=size) for size in (0, 10_000)
    )
    body = json.loads(padded.payload.split(b"\r\n\r\n", 1)[1])
    assert len(padded.payload) - len(plain.payload) > 10_000
    assert body["messages"] == json.loads(plain.payload.split(b"\r\n\r\n", 1)[1])["messages"]
