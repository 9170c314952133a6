from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.request.bodies import INVALID_FIELD, RESERVED_FIELDS, UNSUPPORTED_FIELD, Body, BodyFault, read_body
from gateway.request.engine_api import (
    CHAT_PATH,
    COUNT_TOKENS_PATH,
    EMBEDDINGS_PATH,
    MESSAGES_PATH,
    POSTED_PATHS,
    RERANK_PATHS,
    RESPONSES_PATH,
    SCORE_PATHS,
)


def read(path: str, *, passes_priority: bool = False, **fields: Any) -> Body:
    return read_body(path, json.dumps({"model": "m", **fields}).encode(), passes_priority=passes_priority)


def fault(path: str, **fields: Any) -> BodyFault:
    with pytest.raises(BodyFault) as caught:
        read(path, **fields)
    return caught.value


def prompt(body: Body) -> bytes:
    return b"".join(map(bytes, body.prompt_parts()))


class TestWhatClientsMayNotSay:
    @pytest.mark.parametrize("path", POSTED_PATHS)
    @pytest.mark.parametrize("name", RESERVED_FIELDS)
    def test_no_call_takes_what_only_gateways_tell_engines(self, name: str, path: str) -> None:
        refused = fault(path, **{name: {"do_remote_prefill": True}})
        assert (refused.kind, refused.param) == (UNSUPPORTED_FIELD, name)
        nothing: dict[str, Any] = {name: None}
        assert read(path, **nothing).model == "m"

    @pytest.mark.parametrize(
        "name",
        [
            "kv_transfer_params",
            "ec_transfer_params",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "disagg_prefill_dp_rank",
            "routed_dp_rank",
            "data_parallel_rank",
            "request_id",
            "rid",
            "routed_experts_prompt_start",
            "return_routed_experts",
        ],
    )
    def test_the_list_only_grows(self, name: str) -> None:
        assert name in RESERVED_FIELDS

    def test_a_name_in_disguise_is_the_same_name(self) -> None:
        with pytest.raises(BodyFault):
            read_body(CHAT_PATH, b'{"model":"m","kv_transfer_param\\u0073":{}}', passes_priority=False)

    def test_what_is_said_last_counts(self) -> None:
        said = b'{"model":"m","rid":null,"rid":"x"}'
        with pytest.raises(BodyFault):
            read_body(CHAT_PATH, said, passes_priority=False)

    def test_extra_arguments_are_no_way_around(self) -> None:
        assert fault(CHAT_PATH, vllm_xargs={"kv_transfer_params": "x"}).param == "vllm_xargs"
        read(CHAT_PATH, vllm_xargs={"mine": 1})
        read(CHAT_PATH, vllm_xargs=[1])

    def test_no_more_extra_arguments_than_can_be_looked_at(self) -> None:
        read(CHAT_PATH, vllm_xargs={"mine": "x" * 60_000})
        found = fault(CHAT_PATH, vllm_xargs={"mine": "x" * 70_000})
        assert (found.kind, found.param) == (INVALID_FIELD, "vllm_xargs")
        assert fault(CHAT_PATH, vllm_xargs=[1] * 70_000).param == "vllm_xargs"

    def test_priority_needs_to_be_allowed(self) -> None:
        assert fault(CHAT_PATH, priority=1).param == "priority"
        read(CHAT_PATH, priority=1, passes_priority=True)

    @pytest.mark.parametrize(("name", "value"), [("background", True), ("conversation", "conv_1")])
    def test_promises_that_cannot_be_kept_are_not_made(self, name: str, value: object) -> None:
        refused = fault(RESPONSES_PATH, **{name: value})
        assert (refused.kind, refused.param) == (UNSUPPORTED_FIELD, name)
        read(RESPONSES_PATH, background=False, conversation=None)


class TestResponses:
    def test_they_are_kept_unless_the_client_says_no(self) -> None:
        assert read(RESPONSES_PATH).stores_response
        assert read(RESPONSES_PATH, store=True).stores_response
        assert not read(RESPONSES_PATH, store=False).stores_response
        assert not read(CHAT_PATH, store=True).stores_response

    def test_they_may_follow_another(self) -> None:
        assert read(RESPONSES_PATH, previous_response_id="resp_1").followed_response_id == "resp_1"
        assert read(RESPONSES_PATH, previous_response_id=None).followed_response_id is None
        assert read(CHAT_PATH, previous_response_id="resp_1").followed_response_id is None

    def test_the_prompt_is_tools_instructions_and_input(self) -> None:
        body = read(RESPONSES_PATH, input="hi", instructions="be brief", tools=[1], max_output_tokens=5)
        assert prompt(body) == b'[1]"be brief""hi"'
        assert body.output_tokens_max() == 5


class TestMessages:
    def test_the_prompt_is_tools_system_and_messages(self) -> None:
        body = read(MESSAGES_PATH, system="be brief", messages=[2], tools=[1], max_tokens=5)
        assert prompt(body) == b'[1]"be brief"[2]'
        assert body.output_tokens_max() == 5

    def test_a_line_that_differs_in_every_request_is_no_part_of_the_prefix(self) -> None:
        rule = {"type": "text", "text": "be brief"}

        def asked(number: int) -> bytes:
            line = {"type": "text", "text": f"x-anthropic-billing-header: {number}"}
            return prompt(read(MESSAGES_PATH, system=[line, rule], messages=[2]))

        assert asked(1) == asked(2)
        assert b"be brief" in asked(1)
        assert b"x-anthropic" in prompt(read(MESSAGES_PATH, system="x-anthropic-billing-header"))

    @pytest.mark.parametrize("rest", [["x" * 300_000], [1] * 1000])
    def test_but_nobody_takes_a_prompt_apart_that_is_long_or_in_many_pieces(self, rest: list[object]) -> None:
        """Each piece costs time, and a body has room for millions."""
        line = {"type": "text", "text": "x-anthropic-billing-header: 1"}
        body = read(MESSAGES_PATH, system=[line, *rest], messages=[])
        assert b"x-anthropic" in prompt(body)
        assert len(body.prompt_parts()) == 2

    def test_the_user_s_id_keeps_a_session_together(self) -> None:
        assert read(MESSAGES_PATH, metadata={"user_id": "ann", "more": 1}).session_hint == "ann"
        assert read(MESSAGES_PATH, metadata={}).session_hint == ""
        assert fault(MESSAGES_PATH, metadata="x").kind is INVALID_FIELD

    def test_counting_tokens_leaves_nothing_in_a_cache_and_never_streams(self) -> None:
        counting, asking = read(COUNT_TOKENS_PATH, stream=True), read(MESSAGES_PATH, stream=True)
        assert (counting.fills_prefix_cache, counting.streams) == (False, False)
        assert (asking.fills_prefix_cache, asking.streams) == (True, True)


class TestOtherCalls:
    @pytest.mark.parametrize("path", RERANK_PATHS)
    def test_reranking_begins_with_the_query(self, path: str) -> None:
        assert prompt(read(path, documents=["a", "b"], query="q")) == b'"q"["a", "b"]'

    @pytest.mark.parametrize("path", SCORE_PATHS)
    @pytest.mark.parametrize(
        ("first", "second"), [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents")]
    )
    def test_pairs_begin_with_what_is_compared(self, path: str, first: str, second: str) -> None:
        said: dict[str, Any] = {second: "b", first: "a"}
        assert prompt(read(path, **said)) == b'"a""b"'

    def test_embeddings_are_of_their_input_and_never_stream(self) -> None:
        body = read(EMBEDDINGS_PATH, input=[1, 2], stream=True)
        assert prompt(body) == b"[1, 2]"
        assert not body.streams


class TestHints:
    def test_the_key_of_a_prompt_cache_is_a_session(self) -> None:
        assert read(CHAT_PATH, prompt_cache_key="k", user="u").session_hint == "k"
        assert read(CHAT_PATH, session_id="s", prompt_cache_key="k").session_hint == "s"

    def test_either_engine_s_word_for_a_salt_sets_caches_apart(self) -> None:
        salted: list[dict[str, Any]] = [
            {},
            {"cache_salt": "a"},
            {"extra_key": "a"},
            {"cache_salt": "a", "extra_key": "a"},
        ]
        salts = [read(CHAT_PATH, **fields).salt for fields in salted]
        assert len(set(salts)) == 4
