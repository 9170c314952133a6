"""Legs of disaggregated requests; `tests/integration/test_disaggregated.py` has both behind a whole gateway."""

from __future__ import annotations

import json
from os import urandom

import pytest
from msgspec.structs import replace

from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, FirstToken, LegEnded
from gateway.core.nearness import Nearness, SignatureState
from gateway.core.vocabulary import (
    Connector,
    Decision,
    LegResult,
    LegRole,
    Outcome,
    PlacementReason,
    PoolName,
    ReplicaId,
    RequestId,
    Target,
    replica_target,
)
from gateway.request.answer import AnswerSettings, ClientAnswer
from gateway.request.engine_api import CHAT_PATH
from gateway.request.leg_answer import LegAnswer
from gateway.request.legs import NONCE_BYTES, OutboundRequest, PartInput, RequestSummary
from gateway.request.parts import Compare, Parts, ignore_stray
from tests.fakes.engine import DONE, GOOD_ANSWER, GOOD_STREAM, ROLE, STOP, USAGE, error_event, event, token
from tests.support.core import SECOND, profile
from tests.support.disaggregated import POOL, workers
from tests.support.proxied import FAILED, GOOD, JSON, SILENCE, RecordingSink, Reply, Scene, ScriptedLeg, VirtualPort

DECISION = Decision(PlacementReason.LOCAL_POLICY, 0, 0, 1, 0)
AT = replica_target(ReplicaId("a"))
TOLD = b'{"blocks":[ 1]}'
CHOICE = b'{"index":0,"message":{"role":"assistant","content":"H"},"finish_reason":"length"}'
NO_MOULD = CHOICE.replace(b'"H"', b'"H","citations":[]')
ANSWER = b'{"object":"chat.completion","choices":[%b],"usage":{"prompt_tokens":22},"kv_transfer_params":%b}'
GIVEN_UP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "recomputed"}]})
ODD = event({"choices": [{"index": 0, "delta": {"audio": "x"}}]})


class Part:
    """Request that is played leg by leg, without a core."""

    def __init__(
        self,
        connector: Connector,
        *,
        stream: bool = False,
        port: VirtualPort | None = None,
        compare: Compare | None = None,
        held_bytes_max: int = 1 << 20,
        body: bytes = b'{"model":"m"}',
    ) -> None:
        self.port = port or Scene().port
        self.connector = connector
        self.sink = RecordingSink()
        self.outbound = OutboundRequest(replace(profile("r1"), stream=stream), CHAT_PATH, (), body)
        self.answer = ClientAnswer(
            self.port,
            AnswerSettings(held_bytes_max=held_bytes_max),
            self.sink,
            outbound=self.outbound,
            summary=RequestSummary(),
            arrived_ns=self.port.now_ns(),
            hold=None,
        )
        self.parts = Parts(self.answer, urandom, compare, ignore_stray)

    def order(self, role: LegRole, at: Target = AT) -> StartLeg:
        leg = 1 if role is LegRole.PREFILL else 2
        return StartLeg(
            RequestId("r1"), 1, leg, role, at, DECISION, 10**18, connector=self.connector, pool=PoolName("chat")
        )

    def asks(self, role: LegRole, at: Target = AT) -> PartInput:
        """Input that a leg gets beside the client's request."""
        part = self.parts.outbound_of(self.order(role, at), self.outbound).part
        assert part is not None
        return part

    def plays(self, role: LegRole, reply: Reply) -> LegEnded:
        """Play a leg to its end, and return its only result."""
        order, ended = self.order(role), list[LegEnded]()
        outbound = self.parts.outbound_of(order, self.outbound)
        leg = LegAnswer(
            self.answer, order, self.parts.body_of, on_over=lambda _, result: ended.append(result), report_fault=None
        )
        scripted = ScriptedLeg(order, outbound, leg, reply)
        leg._handle = scripted
        while scripted.can_speak:
            scripted.speak()
        (result,) = ended
        assert scripted.terminals == 1
        return result


def answered(told: bytes = TOLD, choice: bytes = CHOICE) -> Reply:
    return Reply((ANSWER % (choice, told),), headers=JSON)


class TestPrefills:
    @pytest.mark.parametrize("connector", [Connector.NIXL, Connector.ASCEND])
    def test_what_a_prefill_hands_over_is_kept_as_it_came(self, connector: Connector) -> None:
        part = Part(connector)
        ended = part.plays(LegRole.PREFILL, answered())
        assert (ended.result, ended.prompt_tokens) == (LegResult.COMPLETED, 22)
        asked = part.asks(LegRole.DECODE)
        assert (asked.told, asked.assembled) == (TOLD, True)
        assert part.sink.head is None

    @pytest.mark.parametrize("connector", [Connector.MOONCAKE, Connector.SGLANG])
    def test_of_two_that_begin_at_once_the_decode_is_asked_for_what_the_client_wants(
        self, connector: Connector
    ) -> None:
        part = Part(connector)
        assert part.plays(LegRole.PREFILL, answered(b"null")).result is LegResult.COMPLETED
        asked = part.asks(LegRole.DECODE)
        assert (asked.told, asked.assembled) == (b"", False)

    def test_both_engines_get_the_same_random_bytes_and_other_requests_get_others(self) -> None:
        part = Part(Connector.NIXL)
        nonce = part.asks(LegRole.PREFILL).nonce
        assert len(nonce) == NONCE_BYTES
        assert part.asks(LegRole.DECODE).nonce == nonce
        assert Part(Connector.NIXL).asks(LegRole.PREFILL).nonce != nonce

    def test_a_stream_is_a_prefill_too(self) -> None:
        """SGLang's prefill is asked for what the client wants, and gives one token of it."""
        part = Part(Connector.SGLANG, stream=True)
        assert part.plays(LegRole.PREFILL, Reply((ROLE, token("a"), DONE))).result is LegResult.COMPLETED
        part = Part(Connector.SGLANG, stream=True)
        error = event({"error": {"message": "no", "code": 500}})
        ended = part.plays(LegRole.PREFILL, Reply((ROLE, error, DONE)))
        assert (ended.result, ended.detail) == (LegResult.FAILED, "the prefill: the engine reported an error (500)")

    def test_an_answer_too_long_for_a_prefill_has_failed(self) -> None:
        part = Part(Connector.NIXL, held_bytes_max=20)
        ended = part.plays(LegRole.PREFILL, answered())
        assert (ended.result, ended.detail) == (LegResult.FAILED, "an answer too long for a prefill")

    def test_a_status_without_an_answer_hands_nothing_over(self) -> None:
        assert Part(Connector.NIXL).plays(LegRole.PREFILL, Reply((), 204, ())).result is LegResult.FAILED

    @pytest.mark.parametrize("more", [b'"logprobs":true', b'"tools":[{"type":"function"}]'])
    def test_answers_that_exist_only_whole_are_asked_for_whole(self, more: bytes) -> None:
        part = Part(Connector.NIXL, body=b'{"model":"m",%b}' % more)
        part.plays(LegRole.PREFILL, answered())
        assert not part.asks(LegRole.DECODE).assembled

    @pytest.mark.parametrize("choice", [NO_MOULD, CHOICE + b"," + CHOICE])
    def test_with_a_prefill_that_is_no_mould_the_decode_is_asked_for_the_whole_answer(self, choice: bytes) -> None:
        part = Part(Connector.NIXL)
        assert part.plays(LegRole.PREFILL, answered(choice=choice)).result is LegResult.COMPLETED
        asked = part.asks(LegRole.DECODE)
        assert (asked.told, asked.assembled) == (TOLD, False)

    def test_its_experts_are_compared_and_handed_on_to_nobody(self) -> None:
        """The decode, the client and readers of the event get no counts."""
        asked: list[tuple[str, bytes]] = []

        def compare(pool: PoolName, counts: bytes) -> Nearness:
            asked.append((pool, counts))
            return Nearness(SignatureState.USED, "a1", b"\x00\x40")

        part = Part(Connector.NIXL, compare=compare)
        ended = part.plays(LegRole.PREFILL, answered(b'{"blocks":[ 1],"nightside_expert_counts":{"v":1}}'))
        assert asked == [("chat", b'{"v":1}')]
        assert ended.nearness == Nearness(SignatureState.USED, "a1", b"\x00\x40")
        assert part.asks(LegRole.DECODE).told == TOLD
        assert "counts" not in repr(ended)


class TestDecodes:
    def test_a_stream_that_breaks_off_has_sent_nothing(self) -> None:
        part = Part(Connector.NIXL)
        part.plays(LegRole.PREFILL, answered())
        for reply in (Reply((ROLE, token("a"), FAILED)), Reply((ROLE, token("a")))):
            assert part.plays(LegRole.DECODE, reply).result is LegResult.FAILED
            part.plays(LegRole.PREFILL, answered())
        assert part.sink.head is None
        assert part.asks(LegRole.DECODE).assembled, "an engine that dies is no reason to ask in another way"

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_a_decode_worker_gives_up_is_said_to_be_full(self, stream: bool) -> None:
        """Busy is the result whether or not the client has a part of the answer: another worker may have room for the
        rest."""
        part = Part(Connector.ASCEND, stream=stream)
        part.plays(LegRole.PREFILL, answered())
        ended = part.plays(LegRole.DECODE, Reply((ROLE, token("a"), GIVEN_UP, DONE)))
        assert ended.result is LegResult.BUSY
        assert "make room" in ended.detail
        assert part.sink.body == (ROLE + token("a") if stream else b"")

    def test_a_refusal_in_a_stream_that_is_put_together_is_the_clients(self) -> None:
        part = Part(Connector.NIXL)
        part.plays(LegRole.PREFILL, answered())
        ended = part.plays(LegRole.DECODE, Reply((ROLE, error_event(400, "not that"), DONE)))
        assert ended.result is LegResult.CLIENT_ERROR
        assert part.sink.head is not None
        assert part.sink.head.status == 400
        assert b"not that" in part.sink.body

    def test_what_cannot_be_put_together_is_asked_for_whole_and_for_a_while_of_that_engine_always(self) -> None:
        part = Part(Connector.NIXL)
        part.plays(LegRole.PREFILL, answered())
        assert part.asks(LegRole.DECODE).assembled
        ended = part.plays(LegRole.DECODE, Reply((ROLE, ODD, DONE)))
        assert ended.result is LegResult.INTERNAL, "nothing is held against the engine"
        assert "put together" in ended.detail
        part.plays(LegRole.PREFILL, answered())
        assert not part.asks(LegRole.DECODE).assembled
        elsewhere = replica_target(ReplicaId("b"))
        for waited_ns, is_assembled in ((0, False), (601 * SECOND, True)):
            part.port.now += waited_ns
            next_one = Part(Connector.NIXL, port=part.port)
            next_one.plays(LegRole.PREFILL, answered())
            assert next_one.asks(LegRole.DECODE, elsewhere).assembled
            assert next_one.asks(LegRole.DECODE).assembled is is_assembled

    def test_an_answer_that_is_too_long_to_hold_says_nothing_of_the_next_one(self) -> None:
        part = Part(Connector.NIXL, held_bytes_max=1000)
        part.plays(LegRole.PREFILL, answered())
        ended = part.plays(LegRole.DECODE, Reply((ROLE, token("x" * 2000), DONE)))
        assert ended.result is LegResult.INTERNAL
        assert "more than 1000 bytes" in ended.detail
        part.plays(LegRole.PREFILL, answered())
        assert not part.asks(LegRole.DECODE).assembled
        next_one = Part(Connector.NIXL, port=part.port)
        next_one.plays(LegRole.PREFILL, answered())
        assert next_one.asks(LegRole.DECODE).assembled


class TestBoth:
    """Both legs, as the core orders them."""

    BODY = b'{"model":"llama","messages":[]}'

    @staticmethod
    def scene() -> Scene:
        scene = Scene()
        scene.port.submit(AssignmentApplied(2, workers(), (), pools=(POOL,)))
        scene.probe("p0", "d0", "d1")
        return scene

    def test_a_streamed_decode_answers_the_client(self) -> None:
        scene = self.scene()
        assert scene.play(answered(), Reply(), body=self.BODY) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert [leg.order.role for leg in scene.opener.legs] == [LegRole.PREFILL, LegRole.DECODE]
        assert scene.leg.outbound.part is not None
        assert scene.leg.outbound.part.told == TOLD

    def test_an_assembled_answer_is_sent_in_one_piece(self) -> None:
        scene = self.scene()
        reply = Reply((ROLE, token("a"), STOP, USAGE, DONE, SILENCE))
        assert scene.play(answered(), reply, body=self.BODY, stream=False) is Outcome.COMPLETED
        whole = json.loads(scene.sink.body)
        assert whole["choices"][0]["message"]["content"] == "a"
        assert scene.sink.head is not None
        assert scene.sink.head.headers == (*JSON, ("content-length", str(len(scene.sink.body))))
        (first,) = [each for each in scene.port.events if isinstance(each, FirstToken)]
        assert not first.is_sent
        assert scene.legs_ended[1].output_tokens == 6

    @pytest.mark.parametrize(
        "before",
        [(answered(choice=NO_MOULD),), (answered(), Reply((ROLE, ODD, DONE)), answered())],
        ids=["no mould", "no assembling"],
    )
    def test_a_decode_may_answer_in_one_piece(self, before: tuple[Reply, ...]) -> None:
        scene = self.scene()
        whole = Reply((GOOD_ANSWER,), headers=JSON)
        assert scene.play(*before, whole, body=self.BODY, stream=False) is Outcome.COMPLETED
        assert scene.sink.body == GOOD_ANSWER
        assert len(scene.legs_ended) == len(before) + 1

    def test_an_assembled_stream_that_falls_silent_has_failed(self) -> None:
        scene = self.scene()
        silent = Reply((ROLE, token("a"), SILENCE))
        scene.play(answered(), silent, *(FAILED,) * 4, body=self.BODY, stream=False, deadline_ns=1000 * SECOND)
        assert scene.legs_ended[1].detail == "it fell silent"
        assert scene.sink.head is None

    def test_a_decode_is_on_the_board_of_progress_while_it_runs(self) -> None:
        scene = self.scene()
        request = scene.begin(answered(), Reply((GOOD_STREAM[0], SILENCE)), body=self.BODY)
        scene.wait(0.1)
        scene.play_on(request)
        (progress,) = scene.port.progress.sample(POOL.name)
        assert progress.request_id == "r1"
        scene.leave(request)
        scene.check()
        assert scene.port.progress.sample(POOL.name) == ()
