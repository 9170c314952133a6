"""Extras: figures that the gateway asks engines for, in each engine's terms, and removes before a client sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import Extra, Outcome
from gateway.request.body_edits import set_members
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from gateway.request.event_scanner import EventScanner
from gateway.request.extras import Withheld, ask_for
from loadgen.engine.api_answers import ApiAnswer
from loadgen.engine.api_requests import GenerationRequest
from loadgen.engine.tokens import continuation
from loadgen.engine.vocabulary import Endpoint, FinishReason
from tests.fakes.engine import DONE, ROLE, STOP, USAGE, token
from tests.support.proxied import FAILED, Reply, Scene

ALL = (Extra.USAGE, Extra.TOKEN_IDS)
RECORDINGS = Path(__file__).parents[3] / "recordings" / "vllm-0.32.0"


def asked(body: bytes, wanted: Iterable[Extra] = (Extra.USAGE,), path: str = CHAT_PATH) -> dict[str, object] | None:
    """Members of the body as it goes out; None if it goes out as it came."""
    settings, extras = ask_for(wanted, path, body)
    assert len(settings) == len(extras)
    return json.loads(b"".join(set_members(body, settings))) if settings else None


def shown(stream: bytes, cuts: Iterable[int] = (), extras: tuple[Extra, ...] = ALL, limit: int = 1 << 20) -> bytes:
    """Bytes that the client gets of a stream that comes in pieces."""
    scanner, withheld = EventScanner(event_bytes_max=limit), Withheld(extras)
    borders = [0, *sorted(cuts), len(stream)]
    out = b""
    for start, end in pairwise(borders):
        if start < end:
            out += withheld.feed(scanner.feed(stream[start:end]), is_crossing=scanner.is_crossing)
    out += withheld.feed(scanner.close(), is_crossing=scanner.is_crossing)
    return out + withheld.close()


class TestAsking:
    def test_a_stream_is_asked_for_its_usage_and_its_tokens(self) -> None:
        assert asked(b'{"stream":true,"model":"m"}', ALL) == {
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "stream": True,
            "model": "m",
        }

    @pytest.mark.parametrize("told", ['{"include_usage":true}', '{"x":1,"include_usage": true }'])
    def test_a_client_that_asks_itself_keeps_what_it_is_told(self, told: str) -> None:
        assert asked(b'{"stream_options":%b}' % told.encode()) is None
        assert asked(b'{"return_token_ids":true}', (Extra.TOKEN_IDS,)) is None
        assert asked(b'{"str\\u0065am_options":%b}' % told.encode()) is None

    @pytest.mark.parametrize("told", ["null", "{}", '{"include_usage":false}', '{"continuous_usage_stats":true}'])
    def test_options_that_ask_for_no_usage_are_kept_but_for_those_that_mean_something_only_with_it(
        self, told: str
    ) -> None:
        assert asked(b'{"stream_options":%b}' % told.encode()) == {"stream_options": {"include_usage": True}}
        mine = asked(b'{"stream_options":{"chunk":[1,{}],"include_usage":null}}')
        assert mine == {"stream_options": {"include_usage": True, "chunk": [1, {}]}}

    def test_of_several_choices_nobody_knows_which_ends_last(self) -> None:
        assert asked(b'{"n":2}') is None
        assert asked(b'{"n":1}') is not None
        for prompt, is_asked in (('["a","b"]', False), ("[[1]]", False), ("[1,2]", True), ('"a"', True)):
            assert (asked(b'{"prompt":%b}' % prompt.encode(), path=COMPLETIONS_PATH) is not None) is is_asked

    def test_what_is_for_the_engine_to_refuse_goes_to_it_as_it_is(self) -> None:
        assert asked(b'{"stream_options":[1]}') is None
        assert asked(b'{"stream_options":"yes"}') is None

    @pytest.mark.parametrize("path", [RESPONSES_PATH, MESSAGES_PATH])
    def test_calls_that_always_tell_are_not_asked(self, path: str) -> None:
        assert asked(b"{}", ALL, path) is None


@pytest.mark.parametrize("name", [path.name.split(".")[0] for path in sorted(RECORDINGS.glob("*.stream.sse"))])
def test_of_a_recording_with_usage_one_without_it_is_left(name: str) -> None:
    """Recordings of vLLM 0.32: the fingerprint moves to the event that it would have been in without usage."""
    stream = (RECORDINGS / f"{name}.stream.sse").read_bytes()
    tells = json.loads((RECORDINGS / f"{name}.request.json").read_bytes())
    usage = re.findall(rb'data: [^\n]*"choices":\[\],"usage":[^\n]*\n\n', stream)
    client = shown(stream, extras=(Extra.USAGE,))
    if not usage:
        assert client == stream, tells
        return
    fingerprint = re.search(rb',"system_fingerprint":"[^"]*"', usage[0])
    plain = stream.replace(usage[0], b"")
    if fingerprint is not None:
        end = plain.rindex(b"}\n\ndata: [DONE]")
        plain = plain[:end] + fingerprint[0] + plain[end:]
    assert client == plain


def test_llama_cpps_timings_stand_in_the_last_event_whichever_it_is() -> None:
    head = b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"system_fingerprint":"b0"'
    last = b'data: {"choices":[],"system_fingerprint":"b0","usage":{"prompt_tokens":3},"timings":{"prompt_n":3}}\n\n'
    told = ROLE + token("a") + head + b"}\n\n" + last + DONE
    assert shown(told) == ROLE + token("a") + head + b',"timings":{"prompt_n":3}}\n\n' + DONE


TEXTS = st.sampled_from(["a", ' "usage":{"x":1}', '"finish_reason":"stop"', '"token_ids":[1]', "\n\n", "data: [DONE]"])
REQUEST = GenerationRequest(
    Endpoint.CHAT, "m", b"abcdefgh", None, ignore_eos=False, stream=True, cache_salt="", include_usage=False
)


@given(
    endpoint=st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETION]),
    tokens=st.integers(1, 6),
    extras=st.sampled_from([(Extra.USAGE,), (Extra.TOKEN_IDS,), ALL]),
    reason=st.sampled_from([FinishReason.LENGTH, FinishReason.STOP]),
    cuts=st.lists(st.integers(0, 3000), max_size=12),
    between=st.lists(st.tuples(st.integers(0, 8), TEXTS), max_size=4),
    size=st.sampled_from([0, 0, 5000]),
)
def test_the_client_gets_byte_for_byte_what_it_would_have_got(  # noqa: PLR0917
    endpoint: Endpoint,
    tokens: int,
    extras: tuple[Extra, ...],
    reason: FinishReason,
    cuts: list[int],
    between: list[tuple[int, str]],
    size: int,
) -> None:
    """The emulated engine's stream with and without extras, with further events in it, in any pieces. `size`: text
    bytes of an event that may be too large to hold."""

    def stream(request: GenerationRequest) -> bytes:
        output = continuation("m", b"abcdefgh", tokens)
        told = ApiAnswer(request, "id-1", 1_795_242_050, 2, output).piece(0, tokens, reason)
        parts = told.split(b"\n\n")[:-1]
        for place, text in between:  # events before and after are in both streams
            parts.insert(min(place, tokens), b": " + json.dumps(text).encode())
        if size:
            parts.insert(0, b'data: {"choices":[{"delta":{"content":"%b"}}]}' % (b"x" * size))
        return b"".join(part + b"\n\n" for part in parts)

    more = replace(REQUEST, endpoint=endpoint)
    plain = stream(more)
    told = stream(replace(more, include_usage=Extra.USAGE in extras, return_token_ids=Extra.TOKEN_IDS in extras))
    assert told != plain
    assert shown(told, cuts, extras, limit=2000) == plain
    assert shown(plain, cuts, extras, limit=2000) == plain


def test_a_stream_that_breaks_off_gives_all_that_came() -> None:
    for told in (ROLE + token("a") + STOP, ROLE + token("a"), ROLE + STOP + b": still here\n\n"):
        assert shown(told) == told
    assert shown(STOP + b'data: {"choi') == STOP, "half an event is none"


def test_only_one_event_is_taken_out() -> None:
    assert shown(ROLE + STOP + USAGE + USAGE + DONE) == ROLE + STOP + USAGE + DONE


class TestRelayed:
    """Relay by a request whose client asked for nothing."""

    def test_the_core_hears_what_the_client_does_not(self) -> None:
        scene = Scene()
        reply = Reply((ROLE, token("a"), STOP, USAGE, DONE), extras=(Extra.USAGE,))
        assert scene.play(reply) is Outcome.COMPLETED
        assert scene.sink.body == ROLE + token("a") + STOP + DONE
        (ended,) = scene.legs_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    def test_an_answer_of_a_single_event_waits_for_the_next_one_and_no_longer(self) -> None:
        scene = Scene()
        assert scene.play(Reply((STOP, USAGE, DONE), extras=(Extra.USAGE,))) is Outcome.COMPLETED
        assert scene.sink.body == STOP + DONE

    def test_without_a_usage_after_all_the_end_still_comes(self) -> None:
        scene = Scene()
        assert scene.play(Reply((ROLE, token("a"), STOP), extras=(Extra.USAGE,))) is Outcome.COMPLETED
        assert scene.sink.body == ROLE + token("a") + STOP

    def test_what_came_before_a_fault_is_the_clients(self) -> None:
        scene = Scene()
        fault = b'data: {"error":{"message":"x"}}\n\n'
        reply = Reply((ROLE, token("a"), STOP, fault), extras=(Extra.USAGE,))
        assert scene.play(reply) is Outcome.FAILED_MIDSTREAM
        assert scene.sink.body == ROLE + token("a") + STOP

    def test_another_leg_may_withhold_other_things(self) -> None:
        scene = Scene()
        assert scene.play(FAILED, Reply((ROLE, token("a"), STOP, USAGE, DONE))) is Outcome.COMPLETED
        assert scene.sink.body == ROLE + token("a") + STOP + USAGE + DONE
