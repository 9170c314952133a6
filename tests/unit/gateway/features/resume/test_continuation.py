"""Broken answers that another target goes on with: what is kept of them, what is asked for, what the client gets."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gateway.core.kernel.effects import TakeBackLeg
from gateway.core.kernel.events import AssignmentApplied, LegEnded, TargetLost
from gateway.core.vocabulary import LegResult, Outcome, ReplicaId
from gateway.features.resume.continuation import Continuation
from gateway.request.engine_api import CHAT_PATH
from gateway.request.kept_answer import NoRemainder
from gateway.request.legs import LegHead, OutboundRequest, RanAt
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, USAGE, chat_chunk, error_event, event, token
from tests.support.core import US, profile, replica_spec
from tests.support.orders import start
from tests.support.proxied import EVENT_STREAM, FAILED, JSON, SILENCE, Reply, Scene, Script

BODY = b'{"model":"llama","messages":[{"role":"user","content":"hello"}],"stream":true}'
BROKEN = Reply((ROLE + token("a"), FAILED))
HALF = token("x").partition(b'x"')[0]
HALF_A_LETTER = token("LETTER").replace(b"LETTER", "ü".encode()).partition(b"\xbc")[0]
TOOL_CALL = chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]})
BOAST = event({"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"completion_tokens": 10**320}})
REST = Reply((ROLE, token("b"), STOP, USAGE, DONE))


class Room:
    """Budget in which a body is counted."""

    def __init__(self, room_bytes: int = 1 << 20) -> None:
        self.room_bytes = room_bytes
        self.held = 0

    def hold(self, more: int) -> bool:
        fits = self.held + more <= self.room_bytes
        self.held += more if fits else 0
        return fits


def continuation(room: Room, *, output_tokens_max: int | None = None) -> Continuation:
    body = BODY if output_tokens_max is None else b'%b,"max_tokens":%d}' % (BODY[:-1], output_tokens_max)
    outbound = OutboundRequest(replace(profile("r1"), output_tokens_max=output_tokens_max), CHAT_PATH, (), body)
    return Continuation(outbound, room.hold, lambda _: True, prefix_blocks_max=100)


def text_of(body: bytes) -> str:
    payloads = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for payload in payloads for choice in json.loads(payload)["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def play(scene: Scene, *scripts: Script) -> Outcome:
    return scene.play(*scripts, body=BODY, hold=Room().hold)


class TestRests:
    @pytest.mark.parametrize("room_bytes", [16 * 1024, 17 * 1024])
    def test_the_rest_is_counted_with_the_body_that_it_is_made_of(self, room_bytes: int) -> None:
        """The rest is another body as large as the client's. Without room for it, no target is asked."""
        room = Room(room_bytes)
        kept = continuation(room)
        kept.keep(ROLE + token("a"))
        if room_bytes == 16 * 1024:
            with pytest.raises(NoRemainder, match="room"):
                kept.break_off()
            assert kept.is_dropped
            return
        kept.break_off()
        assert (kept.is_dropped, kept.said_tokens) == (False, 1)
        kept.keep(token("b"))
        rest = kept.break_off()
        assert kept.outbound is rest
        assert kept.said_tokens == 2
        assert room.held == 16 * 1024 + len(rest.body), "the first one is gone"

    def test_usage_above_the_limit_takes_nothing_off_the_rest(self) -> None:
        kept = continuation(Room(), output_tokens_max=50)
        choice = {"index": 0, "delta": {"content": 100 * "a "}}
        kept.keep(ROLE + event({"choices": [choice], "usage": {"completion_tokens": 100}}))
        asked = json.loads(kept.break_off().body)
        assert (asked["max_tokens"], kept.said_tokens) == (49, 1)
        rewriter = kept.adapter(replace(start(), segment=1), LegHead(200, EVENT_STREAM, RanAt(ReplicaId("b"), US)))
        assert text_of(rewriter.adapt(token("b"))) == "b"

    def test_the_client_is_told_where_its_answer_went_on(self) -> None:
        kept = continuation(Room())
        kept.keep(ROLE + token("a"))
        kept.break_off()
        head = LegHead(200, EVENT_STREAM, RanAt(ReplicaId("b"), US))
        rewriter = kept.adapter(replace(start(), segment=2), head)
        told = rewriter.adapt(b"".join(piece for piece in REST.pieces if isinstance(piece, bytes)))
        assert b": nightside: went on elsewhere, resume 2, in us-east-1\n\n" in told


class TestResuming:
    @pytest.mark.parametrize("unsaid", [(), (HALF,), (HALF_A_LETTER,)], ids=["event", "half an event", "half a letter"])
    def test_another_target_goes_on_where_the_answer_broke(self, unsaid: tuple[bytes, ...]) -> None:
        """Half an event that came last is not said: the client has none of it."""
        scene = Scene()
        broken = Reply((ROLE + token("a"), *unsaid, FAILED))
        assert play(scene, broken, REST) is Outcome.COMPLETED
        assert text_of(scene.sink.body) == "ab"
        assert json.loads(scene.leg.outbound.body)["messages"][-1] == {"role": "assistant", "content": "a"}
        assert scene.sink.body.startswith(ROLE + token("a"))
        assert scene.sink.body.count(DONE) == 1
        assert (scene.summary.segments, scene.summary.notes) == (1, {})
        first, second = scene.legs_ended
        assert (first.remainder is not None, first.output_tokens, second.result) == (True, 1, LegResult.COMPLETED)

    def test_a_tenant_is_not_charged_for_a_count_that_cannot_be(self) -> None:
        scene = Scene()
        assert play(scene, Reply((ROLE + BOAST, FAILED)), REST) is Outcome.COMPLETED
        assert (text_of(scene.sink.body), scene.legs_ended[0].output_tokens) == ("ab", 1)

    def test_it_is_asked_for_the_rest_alone(self) -> None:
        scene = Scene()
        play(scene, BROKEN, REST)
        asked = json.loads(scene.leg.outbound.body)
        assert asked["messages"][-1] == {"role": "assistant", "content": "a"}
        assert scene.opener.legs[0].outbound.body == BODY

    def test_a_rest_may_break_too(self) -> None:
        scene = Scene()
        scene.port.submit(AssignmentApplied(2, tuple(replica_spec(name) for name in "abc"), ()))
        scene.probe("a", "b", "c")
        again = Reply((ROLE, token("b"), FAILED))
        assert play(scene, BROKEN, again, Reply((ROLE, token("c"), STOP, DONE))) is Outcome.COMPLETED
        assert text_of(scene.sink.body) == "abc"
        assert scene.summary.segments == 2

    def test_an_answer_that_breaks_after_a_silence_is_resumed_too(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE + token("a"), SILENCE)), REST, body=BODY, hold=Room().hold)
        scene.port.give(lambda: scene.leg.listener.on_failed(FAILED))
        scene.opener.legs[0].is_over, scene.opener.legs[0].terminals = True, 1
        scene.finish(request)
        scene.check()
        assert text_of(scene.sink.body) == "ab"

    @pytest.mark.parametrize("refusal", [Reply((b'{"error":{}}',), 400, JSON), Reply((error_event(400), DONE))])
    def test_an_engine_that_refuses_the_rest_is_not_the_clients_news(self, refusal: Reply) -> None:
        """The client has the beginning of an answer already; another engine may accept the rest."""
        scene = Scene()
        play(scene, BROKEN, refusal, REST, FAILED)
        assert scene.results[:2] == [LegResult.FAILED, LegResult.CLIENT_ERROR]
        assert scene.sink.body.startswith(ROLE + token("a"))
        assert b"error" not in scene.sink.body

    def test_an_answer_that_was_not_kept_is_not_resumed(self) -> None:
        scene = Scene()
        assert scene.play(BROKEN, REST, body=BODY) is Outcome.FAILED_MIDSTREAM
        assert scene.summary.notes == {"unresumed": "nothing was kept of it"}
        assert scene.opener.opened == 1

    def test_without_room_it_is_dropped_and_says_so(self) -> None:
        scene = Scene()
        outcome = scene.play(BROKEN, REST, body=BODY, hold=Room(16 * 1024).hold)
        assert outcome is Outcome.FAILED_MIDSTREAM
        assert scene.summary.is_answer_dropped
        assert "room" in scene.summary.notes["unresumed"]

    def test_an_answer_that_broke_by_the_requests_own_fault_is_not_resumed(self) -> None:
        scene = Scene()
        assert play(scene, Reply((ROLE + token("a"), error_event(400), DONE)), REST) is Outcome.FAILED_MIDSTREAM
        (ended,) = scene.legs_ended
        assert isinstance(ended, LegEnded)
        assert ended.remainder is None


class TestTakingBack:
    """Legs at a target that has fallen silent."""

    @staticmethod
    def alarm(scene: Scene) -> None:
        scene.port.submit(TargetLost(scene.leg.order.target, "it is silent", is_silent=True))

    @pytest.mark.parametrize("script", [SILENCE, Reply((SILENCE,)), Reply((SILENCE, *GOOD_STREAM), 200, JSON)])
    def test_a_request_without_an_answer_begins_elsewhere(self, script: Script) -> None:
        scene = Scene()
        request = scene.begin(script, REST, body=BODY, hold=Room().hold)
        self.alarm(scene)
        assert (scene.opener.legs[0].stops, scene.opener.legs[0].terminals) == (1, 1)
        scene.finish(request)
        scene.check()
        assert scene.results == [LegResult.TAKEN_BACK, LegResult.COMPLETED]
        assert text_of(scene.sink.body) == "b"

    def test_an_answer_goes_on_elsewhere(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE + token("a"), SILENCE)), REST, body=BODY, hold=Room().hold)
        self.alarm(scene)
        scene.finish(request)
        scene.check()
        assert scene.results == [LegResult.TAKEN_BACK, LegResult.COMPLETED]
        assert (text_of(scene.sink.body), scene.summary.segments) == ("ab", 1)

    @pytest.mark.parametrize(
        "said", [ROLE + token("a") + TOOL_CALL, token("a") + STOP], ids=["tools", "all of its text"]
    )
    def test_an_answer_that_cannot_is_left_alone(self, said: bytes) -> None:
        scene = Scene()
        request = scene.begin(Reply((said, SILENCE, STOP, DONE)), body=BODY, hold=Room().hold)
        self.alarm(scene)
        assert scene.leg.stops == 0
        scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert (scene.end.outcome, scene.results) == (Outcome.COMPLETED, [LegResult.COMPLETED])
        assert scene.summary.notes == {}, "it did not break"

    def test_nor_one_whose_end_may_wait_here_for_a_slow_client(self) -> None:
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        request = scene.begin(Reply((ROLE + token("a"), token("b"), STOP, DONE)), body=BODY, hold=Room().hold)
        assert scene.leg.is_paused
        self.alarm(scene)
        scene.finish(request)
        scene.check()
        assert scene.results == [LegResult.COMPLETED]
        assert text_of(scene.sink.body) == "ab"

    @pytest.mark.parametrize(("told", "moves"), [("other", False), ("revision 1", True), ("", True)])
    def test_nor_one_whose_head_told_another_model_than_the_order_rests_on(self, told: str, moves: bool) -> None:
        """Reports of a peer tell what it serves by now, and no one identity where its replicas differ."""
        scene = Scene()
        begun = Reply((ROLE + token("a"), SILENCE, STOP, DONE), identity=told)
        request = scene.begin(begun, REST, body=BODY, hold=Room().hold)
        order = scene.leg.order
        take_back = TakeBackLeg(order.request_id, 1, 1, "it is silent", may_append=True, identity="revision 1")
        scene.port.give(lambda: request.on_effect(take_back))
        assert scene.opener.legs[0].stops == moves
        if not moves:
            scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.results == [LegResult.TAKEN_BACK, LegResult.COMPLETED] if moves else [LegResult.COMPLETED]

    def test_nor_one_that_was_not_kept(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE + token("a"), SILENCE, STOP, DONE)), body=BODY)
        self.alarm(scene)
        scene.leg.go_on()
        scene.finish(request)
        assert scene.results == [LegResult.COMPLETED]

    def test_nor_one_that_the_client_has_all_of(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((*GOOD_STREAM, SILENCE)), body=BODY, hold=Room().hold)
        self.alarm(scene)
        scene.finish(request)
        assert scene.results == [LegResult.COMPLETED]

    def test_an_answer_in_one_piece_is_asked_for_again_until_some_of_it_was_sent(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((b'{"choi', SILENCE), 200, JSON), Reply((b"{}",), 200, JSON), body=BODY)
        self.alarm(scene)
        scene.finish(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED
