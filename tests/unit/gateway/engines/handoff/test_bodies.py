"""Bodies of either leg, compared with the contracts of vLLM 0.32, vllm-ascend 0.23 and SGLang 0.5.23, and with the
client's own body: all members but the connector's are passed on unchanged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import Connector
from gateway.engines.handoff.attempt_ids import attempt_ids
from gateway.engines.handoff.bodies import LegBody, decode_body, prefill_body
from gateway.engines.handoff.bootstrap import Bootstrap
from gateway.request import engine_api
from gateway.request.legs import CacheSalt

CHAT, COMPLETIONS = engine_api.CHAT_PATH, engine_api.COMPLETIONS_PATH
MET = attempt_ids(b"n" * 16, 1)
AT = Bootstrap("p.example", 8998, engine_id="e-0")
TOLD = b'{"do_remote_prefill":true, "remote_block_ids":[[64,40]],"remote_engine_id":"365c","x":1.50,"tp_size":1}'
"""Hand-off with odd spaces and numbers: a gateway must not parse it and write it again."""
PROMPTS = (
    b'"Once \\u00fcpon \\n a night "',
    b"[ 963,608 , 1108]",
    b'[{"role":"user", "content":"max_tokens: \\"stream\\": 7"}]',
)
THEIRS = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "max_tokens": 200,
    "max_completion_tokens": 300,
    "min_tokens": 20,
    "min_completion_tokens": 20,
    "n": 1,
    "best_of": 1,
    "logprobs": True,
    "top_logprobs": 5,
    "logprob_token_ids": [7, 8],
    "return_token_ids": True,
    "return_prompt_text": True,
    "response_format": {"type": "json_object"},
    "temperature": 0.7,
    "stop": ["stream_options"],
}


def whole(parts: LegBody) -> bytes:
    return b"".join(parts)


def prefill(connector: Connector, body: object, path: str = CHAT) -> dict[str, Any]:
    raw = json.dumps(body).encode()
    result: dict[str, Any] = json.loads(whole(prefill_body(connector, path, raw, MET, bootstrap=AT)))
    return result


def decode(connector: Connector, body: object, **more: Any) -> dict[str, Any]:
    told = TOLD if connector.is_sequential else b""
    raw = json.dumps(body).encode()
    result: dict[str, Any] = json.loads(whole(decode_body(connector, raw, MET, told=told, bootstrap=AT, **more)))
    return result


TO_PULL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class TestNixl:
    def test_a_prefill_is_asked_for_one_token_in_one_piece(self) -> None:
        assert prefill(Connector.NIXL, {"model": "m", "messages": []}) == {
            "model": "m",
            "messages": [],
            "stream": False,
            "max_tokens": 1,
            "kv_transfer_params": TO_PULL,
        }

    def test_what_a_client_asks_of_its_answer_is_not_asked_of_the_prefill(self) -> None:
        assert prefill(Connector.NIXL, {"model": "m", **THEIRS}) == {
            "model": "m",
            **THEIRS,
            "stream": False,
            "stream_options": None,
            "max_tokens": 1,
            "max_completion_tokens": 1,
            "min_tokens": 0,
            "min_completion_tokens": None,
            "best_of": None,
            "logprobs": False,
            "top_logprobs": None,
            "logprob_token_ids": None,
            "return_token_ids": None,
            "return_prompt_text": None,
            "kv_transfer_params": TO_PULL,
        }

    def test_several_answers_are_one_there(self) -> None:
        asked = prefill(Connector.NIXL, {"n": 8, "best_of": 9})
        assert (asked["n"], asked["best_of"]) == (1, None)

    def test_each_call_has_its_own_words(self) -> None:
        assert prefill(Connector.NIXL, {"logprobs": 3, "top_logprobs": 3}, COMPLETIONS)["logprobs"] is None
        responses = prefill(Connector.NIXL, {"input": "x", "max_output_tokens": 99}, engine_api.RESPONSES_PATH)
        assert responses["max_output_tokens"] == 1
        assert "max_tokens" not in responses
        messages = prefill(
            Connector.NIXL, {"max_tokens": 99, "thinking": {"budget_tokens": 50}}, engine_api.MESSAGES_PATH
        )
        assert messages["max_tokens"] == 1

    def test_a_decode_is_the_clients_own_request_with_what_the_prefill_told(self) -> None:
        raw = json.dumps({"model": "m", **THEIRS}).encode()
        assert (
            whole(decode_body(Connector.NIXL, raw, MET, told=TOLD)) == b'{"kv_transfer_params":' + TOLD + b"," + raw[1:]
        )

    def test_what_may_be_put_together_here_is_had_as_a_stream_that_tells_its_usage(self) -> None:
        usage = {"include_usage": True}
        for theirs in ({}, {"stream": False, "stream_options": None}, {"stream": None}):
            asked = decode(Connector.NIXL, {"model": "m", **theirs}, assembled=True)
            assert (asked["stream"], asked["stream_options"]) == (True, usage)


class TestAscend:
    def test_one_token_at_least_so_that_it_ends_by_length(self) -> None:
        for theirs in ({}, {"min_tokens": 9}):
            asked = prefill(Connector.ASCEND, {"model": "m", **theirs})
            assert (asked["min_tokens"], asked["max_tokens"]) == (1, 1)
            assert asked["kv_transfer_params"] == {**TO_PULL, "aborted_request": []}

    def test_its_decode_is_told_what_nixls_would_be(self) -> None:
        assert decode(Connector.ASCEND, {"model": "m"}) == {"model": "m", "kv_transfer_params": json.loads(TOLD)}


class TestMooncake:
    def test_both_legs_name_one_transfer(self) -> None:
        asked, decoded = (ask(Connector.MOONCAKE, {"model": "m"})["kv_transfer_params"] for ask in (prefill, decode))
        assert asked == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": MET.transfer_id}
        assert decoded == {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": "http://p.example:8998",
            "remote_engine_id": "e-0",
            "transfer_id": MET.transfer_id,
        }

    def test_neither_the_end_of_a_text_nor_a_grammar_ends_a_prefill(self) -> None:
        asked = prefill(Connector.MOONCAKE, {"model": "m", **THEIRS, "structured_outputs": {"regex": "a"}})
        assert (asked["min_tokens"], asked["max_tokens"]) == (1, 1)
        assert (asked["response_format"], asked["structured_outputs"]) == (None, None)
        decoded = decode(Connector.MOONCAKE, {"model": "m", **THEIRS})
        assert decoded["response_format"] == THEIRS["response_format"]
        assert decoded["min_tokens"] == 20


class TestSglang:
    def test_both_legs_are_the_clients_own_request_in_one_room(self) -> None:
        raw = json.dumps({"model": "m", **THEIRS}).encode()
        room = {"bootstrap_host": "p.example", "bootstrap_port": 8998, "bootstrap_room": MET.room}
        first = whole(prefill_body(Connector.SGLANG, CHAT, raw, MET, bootstrap=AT))
        assert first == whole(decode_body(Connector.SGLANG, raw, MET, bootstrap=AT))
        assert json.loads(first) == {"model": "m", **THEIRS, **room}

    def test_a_pinned_rank_is_led_to_by_the_room(self) -> None:
        at = Bootstrap("p.example", None, ranks=4, rank=3)
        asked = json.loads(whole(prefill_body(Connector.SGLANG, CHAT, b"{}", MET, bootstrap=at)))
        assert asked["bootstrap_room"] % 4 == 3
        assert asked["bootstrap_port"] is None


class TestEither:
    @pytest.mark.parametrize("connector", Connector)
    def test_what_a_client_says_of_hand_offs_reaches_no_engine(self, connector: Connector) -> None:
        """A real decode engine dies of `{"do_remote_prefill": true}` alone."""
        theirs = {"kv_transfer_params": {"do_remote_prefill": True}, "bootstrap_room": 7, "bootstrap_host": "evil"}
        for ask in (prefill, decode):
            asked = ask(connector, {"model": "m", **theirs})
            assert asked["kv_transfer_params"] != theirs["kv_transfer_params"]
            if connector is Connector.SGLANG:
                assert asked["kv_transfer_params"] is None
                assert (asked["bootstrap_room"], asked["bootstrap_host"]) == (MET.room, "p.example")

    @pytest.mark.parametrize("connector", Connector)
    @pytest.mark.parametrize("prompt", PROMPTS)
    def test_the_prompt_is_the_same_on_both_legs_byte_for_byte(self, connector: Connector, prompt: bytes) -> None:
        raw = b' {"stream" :true, "messages" : %b , "max_tokens":7,"prompt":%b}' % (prompt, prompt)
        told = TOLD if connector.is_sequential else b""
        legs = (
            whole(prefill_body(connector, CHAT, raw, MET, bootstrap=AT)),
            whole(decode_body(connector, raw, MET, told=told, bootstrap=AT, assembled=True)),
        )
        for leg in legs:
            assert b'"messages" : %b ,' % prompt in leg
            assert leg.endswith(b'"prompt":%b}' % prompt)

    def test_tenants_are_kept_apart_on_both_legs(self) -> None:
        salt = CacheSalt("abc", replaces_own=True)
        raw = b'{"cache_salt":"mine","stream":true}'
        for leg in (
            prefill_body(Connector.NIXL, CHAT, raw, MET, salt=salt),
            decode_body(Connector.NIXL, raw, MET, told=TOLD, salt=salt),
        ):
            assert json.loads(whole(leg))["cache_salt"] == "abc"

    def test_a_large_prompt_is_searched_by_nobody_and_not_copied_for_the_decode(self) -> None:
        raw = b'{"prompt":"%b","stream":true}' % (b"x" * (2 << 20))
        lead, rest = decode_body(Connector.NIXL, raw, MET, told=TOLD)
        assert isinstance(rest, memoryview)
        assert rest.obj is raw
        asked = json.loads(whole(prefill_body(Connector.NIXL, COMPLETIONS, raw, MET)))
        assert asked["stream"] is False
        assert asked["prompt"] == "x" * (2 << 20)
        assert lead.startswith(b'{"kv_transfer_params":')


bodies = st.dictionaries(
    st.sampled_from((*THEIRS, "kv_transfer_params", "prompt", "model", "messages")),
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.lists(st.integers())
    | st.dictionaries(st.text(), st.text()),
)


@given(bodies, st.sampled_from(Connector), st.booleans())
def test_what_is_not_the_connectors_stays(body: dict[str, Any], connector: Connector, assembled: bool) -> None:
    prefilled = prefill(connector, body)
    decoded = decode(connector, body, assembled=assembled)
    for name in ("prompt", "model", "messages", "temperature", "stop"):
        assert (name in prefilled, name in decoded) == (name in body, name in body)
        assert prefilled.get(name) == decoded.get(name) == body.get(name)
    if connector is not Connector.SGLANG:
        assert prefilled["stream"] is False
        assert not prefilled.get("stream_options")
        assert prefilled["max_tokens"] == 1
