from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.core.vocabulary import Connector, LegResult
from gateway.features.expert_locality.expert_counts import BadCounts, read_counts
from gateway.request import engine_api, handoffs
from gateway.request.bodies import read_body
from gateway.request.handoffs import HANDOFF_BYTES_MAX, Handoff, handoff_in, takers_of, why_whole
from gateway.request.legs import LegFailure
from gateway.request.side_channels import SideChannel
from tests.hostile.prefill_answers import PREFILL_CASES, PrefillCase

OWN = SideChannel(frozenset({"10.0.0.7", "127.0.0.1", "localhost"}), first_port=5600)
CHAT, COMPLETIONS = engine_api.CHAT_PATH, engine_api.COMPLETIONS_PATH
RESPONSES, MESSAGES = engine_api.RESPONSES_PATH, engine_api.MESSAGES_PATH
OLDER_CONNECTORS = frozenset(Connector)
NIXL = frozenset({Connector.NIXL})


def why(path: str, **fields: object) -> str:
    return why_whole(read_body(path, json.dumps({"model": "m", **fields}).encode(), passes_priority=False))


def takers(path: str, **fields: object) -> frozenset[Connector]:
    return takers_of(read_body(path, json.dumps({"model": "m", **fields}).encode(), passes_priority=False))


class TestWhatTwoEnginesMayShare:
    def test_plain_calls(self) -> None:
        assert takers(CHAT, messages=[], n=1, use_beam_search=False, prompt_logprobs=None) == OLDER_CONNECTORS
        assert takers(COMPLETIONS, prompt="x", best_of=None, echo=False) == OLDER_CONNECTORS
        assert takers(MESSAGES, messages=[]) == NIXL
        assert takers(RESPONSES, input="x", store=False, truncation="disabled") == NIXL

    def test_only_generating_calls(self) -> None:
        generating = {CHAT, COMPLETIONS, RESPONSES, MESSAGES}
        for path in engine_api.POSTED_PATHS:
            assert bool(why(path, store=False)) == (path not in generating), path

    @pytest.mark.parametrize(
        "path,fields,reason",
        [
            (CHAT, {"n": 2}, "several answers"),
            (CHAT, {"n": "2"}, "several answers"),
            (CHAT, {"best_of": 4}, "several answers"),
            (COMPLETIONS, {"use_beam_search": True}, "several answers"),
            (CHAT, {"prompt_logprobs": 0}, "has not read the prompt"),
            (CHAT, {"truncate_prompt_tokens": -1}, "what is left of the prompt"),
            (COMPLETIONS, {"echo": True}, "has not read the prompt"),
            (COMPLETIONS, {"prompt_embeds": "AAAA"}, "a prompt of numbers"),
            (COMPLETIONS, {"prompt": ["a", "b"]}, "several prompts"),
            (COMPLETIONS, {"prompt": ["a", "b]"]}, "several prompts"),
            (COMPLETIONS, {"prompt": [[1], [2]]}, "several prompts"),
            (RESPONSES, {"input": "x"}, "send store: false"),
            (RESPONSES, {"store": False, "previous_response_id": "resp_1"}, "stays with the engine"),
            (RESPONSES, {"store": False, "truncation": "auto"}, "what is left of the prompt"),
            (RESPONSES, {"store": False, "tools": [{"type": "web_search"}]}, "runs tools itself"),
            (RESPONSES, {"store": False, "tools": [{"type": 7}]}, "runs tools itself"),
        ],
    )
    def test_what_has_to_stay_whole_says_why(self, path: str, fields: dict[str, object], reason: str) -> None:
        assert reason in why(path, **fields)
        assert takers(path, **fields) == frozenset()

    @pytest.mark.parametrize("prompt", ["x", [1, 2, 3], [], ["one"], ['o"n,e]'], [[1, 2]], "[1"])
    def test_one_prompt_in_any_writing(self, prompt: object) -> None:
        assert why(COMPLETIONS, prompt=prompt) == ""

    def test_tools_that_the_client_runs(self) -> None:
        tools = [{"type": "function", "name": "f"}, {"name": "g"}]
        assert why(RESPONSES, input="x", store=False, tools=tools) == ""
        assert why(CHAT, messages=[], tools=tools) == ""


TOLD = b'{"do_remote_prefill":true,"remote_block_ids":[[64, 40]],"x":1.50}'
ANSWER = (
    b'{"id":"cmpl-1","choices":[{"index":0,"text":"ined","finish_reason":"length"}],'
    b'"kv_transfer_params":%b,"metrics":null}'
)


class TestWhatAPrefillHandsOn:
    def test_it_is_the_very_bytes_that_came(self) -> None:
        for connector in (Connector.NIXL, Connector.ASCEND):
            assert handoff_in(ANSWER % TOLD, connector, OWN) == Handoff(TOLD, ANSWER % b"null")

    def test_of_a_real_engine(self) -> None:
        answer = (Path(__file__).parents[3] / "recordings/vllm-0.32.0/chat.prefill.json").read_bytes()
        handed = handoff_in(answer, Connector.NIXL, SideChannel(frozenset({"127.0.0.1"})))
        assert json.loads(handed.told) == json.loads(answer)["kv_transfer_params"]
        assert json.loads(handed.answer) == json.loads(answer) | {"kv_transfer_params": None}
        assert b"remote_block_ids" not in handed.answer

    def test_only_what_is_ours_is_taken_out(self) -> None:
        counts = b'{"v":1, "counts":"x"}'
        told = b'{"nightside" : {"at":[1,{"}":2}]}, "b" : 1.50,"nightside_expert_counts":%b,"c":"nightside"}' % counts
        handed = handoff_in(ANSWER % told, Connector.NIXL, OWN)
        assert handed == Handoff(b'{"b":1.50,"c":"nightside"}', ANSWER % b"null", counts)
        escaped = b'{"\\u006eightside_expert_counts":1,"b":2}'
        assert handoff_in(ANSWER % escaped, Connector.NIXL, OWN) == Handoff(b'{"b":2}', ANSWER % b"null", b"1")
        kept = b'{"c":"nightside", "d\\u0041" :1}'
        assert handoff_in(ANSWER % kept, Connector.NIXL, OWN) == Handoff(kept, ANSWER % b"null")

    @pytest.mark.parametrize("connector", [Connector.MOONCAKE, Connector.SGLANG])
    def test_who_meets_by_other_means_hands_nothing_on(self, connector: Connector) -> None:
        assert handoff_in(ANSWER % b"null", connector, OWN).told == b""

    def test_a_stream_is_a_prefill_too(self) -> None:
        said = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
        assert handoff_in(said, Connector.SGLANG, OWN).told == b""

    @pytest.mark.parametrize(
        "answer,why,result",
        [
            (ANSWER % b"null", "hands nothing over", LegResult.FAILED),
            (ANSWER.replace(b"kv_transfer_params", b"other") % b"1", "hands nothing over", LegResult.FAILED),
            (ANSWER % b"[]", "hands nothing over", LegResult.FAILED),
            (ANSWER % b'"x"', "hands nothing over", LegResult.FAILED),
            (ANSWER % b"{", "no JSON object", LegResult.FAILED),
            (b"", "no JSON object", LegResult.FAILED),
            (b"[]", "no JSON object", LegResult.FAILED),
            (b"[" * 100_000, "no JSON object", LegResult.FAILED),
            (b'{"error":{"message":"m","code":500}}', "reported an error", LegResult.FAILED),
            (b'{"error":{"message":"m","code":503}}', "reported an error", LegResult.BUSY),
            (b'data: {"error":{"message":"m","code":429}}\n\ndata: [DONE]\n\n', "reported an error", LegResult.BUSY),
            (b'{"choices":[{"finish_reason":"abort"}],"kv_transfer_params":{}}', "aborted", LegResult.FAILED),
            (ANSWER % b'{"x":"%b"}' % (b"x" * handoffs.HANDOFF_BYTES_MAX), "more than 512 KiB", LegResult.FAILED),
        ],
    )
    def test_what_is_of_no_use_is_the_targets_failure(self, answer: bytes, why: str, result: LegResult) -> None:
        for connector in (Connector.NIXL, Connector.ASCEND):
            with pytest.raises(LegFailure, match=why) as raised:
                handoff_in(answer, connector, OWN)
            assert raised.value.result is result

    def test_an_error_is_a_failure_of_a_concurrent_prefill_too(self) -> None:
        """No other message tells the decode, which would wait for minutes."""
        for connector in (Connector.MOONCAKE, Connector.SGLANG):
            with pytest.raises(LegFailure, match="reported an error"):
                handoff_in(b'{"error":{"message":"m","code":500}}', connector, OWN)


@pytest.mark.parametrize("case", PREFILL_CASES, ids=lambda case: case.name)
def test_a_prefill_that_lies_hands_over_one_bounded_object_or_is_to_blame(case: PrefillCase) -> None:
    answer = b'{"choices":[],"kv_transfer_params":' + case.params + b"}"
    if case.told is None:
        with pytest.raises(LegFailure) as caught:
            handoff_in(answer, Connector.NIXL, OWN)
        assert caught.value.result is LegResult.FAILED
        return
    handoff = handoff_in(answer, Connector.NIXL, OWN)
    assert handoff.told == case.told
    assert json.loads(handoff.told)
    assert len(handoff.told) <= HANDOFF_BYTES_MAX
    if case.counts:
        assert read_counts(handoff.counts).counts.shape in {(2, 2), (2, 3)}
    else:
        with pytest.raises(BadCounts):
            read_counts(handoff.counts)
