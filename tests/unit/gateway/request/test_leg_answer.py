"""Life of a leg: exactly one result, whatever comes in which order, and several legs of one request at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.events import Event
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.effects import EndRequest, StopLeg
from gateway.core.kernel.events import (
    AssignmentApplied,
    FirstToken,
    LegAccepted,
    LegEnded,
    RequestAbandoned,
    RequestArrived,
    TooLong,
)
from gateway.core.vocabulary import LegResult, LegRole, Outcome
from gateway.features.resume.continuation import keep_answer
from gateway.request.answer import AnswerSettings
from gateway.request.answer_events import TokenUsage
from gateway.request.kept_answer import KeptAnswer
from gateway.request.legs import LegFailure
from gateway.request.proxied import ProxiedRequest
from tests.fakes.engine import DONE, GOOD_ANSWER, GOOD_STREAM, ROLE, STOP, USAGE, token
from tests.support.pools import LONG, POOLS, SHORT, member
from tests.support.proxied import FAILED, GOOD, JSON, SILENCE, Reply, Scene, Script
from tests.support.second_legs import OpensLegs

PREFILLED = Reply((b'{"kv_transfer_params":{"blocks":[1]}}',), headers=JSON)
BEGINNING = (ROLE, token("a"))


def stop_of(scene: Scene) -> StopLeg:
    order = scene.leg.order
    return StopLeg(order.request_id, order.attempt, order.leg, "")


def stop(scene: Scene, request: ProxiedRequest) -> None:
    scene.port.give(lambda: request.on_effect(stop_of(scene)))


class TestStopping:
    """A leg that is stopped says so before `stop` returns, which ends it no second time."""

    @pytest.mark.parametrize(
        "script", [SILENCE, Reply((SILENCE,)), Reply((ROLE, SILENCE)), Reply((*BEGINNING, SILENCE))]
    )
    def test_before_the_head_before_a_token_and_in_an_answer(self, script: Script) -> None:
        scene = Scene()
        request = scene.begin(script, FAILED, FAILED)
        leg = scene.leg
        stop(scene, request)
        assert (leg.stops, leg.terminals) == (1, 1)
        assert scene.results[0] is LegResult.CANCELLED
        scene.finish(request)
        scene.check()

    def test_after_the_core_was_told_of_the_end_a_stop_leaves_the_connection_for_reuse(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((*GOOD_STREAM, SILENCE)))
        stop(scene, request)
        assert (scene.leg.stops, scene.results) == (0, [LegResult.COMPLETED])
        scene.finish(request)
        scene.check()

    def test_after_the_end_a_stop_changes_nothing(self) -> None:
        scene = Scene()
        request = scene.begin(Reply())
        stop(scene, request)
        assert scene.leg.stops == 0
        scene.check()

    @pytest.mark.parametrize(
        "pieces",
        [(b"data: {nonsense\n\n",), (*BEGINNING, b'data: {"error":{"code":500}}\n\n'), (b"data: <html>\n\n",)],
    )
    def test_a_leg_that_fails_within_a_piece_of_data_is_stopped_there(self, pieces: tuple[bytes, ...]) -> None:
        scene = Scene()
        scene.play(Reply(pieces), FAILED)
        assert (scene.opener.legs[0].stops, scene.opener.legs[0].terminals) == (1, 1)

    def test_a_leg_that_fails_at_its_head_is_stopped_there(self) -> None:
        scene = Scene()
        assert scene.play(Reply((), 500, JSON), Reply()) is Outcome.COMPLETED
        assert scene.opener.legs[0].stops == 1

    def test_a_stop_and_the_end_together_are_one_end(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((*BEGINNING, SILENCE)))
        order = scene.leg.order

        def both() -> None:
            request.on_effect(stop_of(scene))
            request.on_effect(EndRequest(order.request_id, Outcome.EXPIRED_RUNNING, "", 1))

        scene.port.give(both)
        assert (scene.leg.stops, scene.leg.terminals) == (1, 1)
        assert (scene.results, len(scene.sink.ends)) == ([LegResult.CANCELLED], 1)


LATE: list[Callable[[Scene], None]] = [
    lambda scene: scene.opener.legs[0].listener.on_accepted(),
    lambda scene: scene.opener.legs[0].head(),
    lambda scene: scene.opener.legs[0].listener.on_data(GOOD),
    lambda scene: scene.opener.legs[0].listener.on_end(None),
    lambda scene: scene.opener.legs[0].listener.on_failed(FAILED),
    lambda scene: scene.opener.legs[0].listener.on_fault(KeyError("late")),
]


class TestLate:
    """Words of a leg that is over are not heard, even if the leg breaks its promise to be silent."""

    @pytest.mark.parametrize("word", LATE)
    def test_while_another_leg_answers(self, word: Callable[[Scene], None]) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE, FAILED)), Reply((*BEGINNING, SILENCE, *GOOD_STREAM[1:])))
        told = list(scene.port.events)
        scene.port.give(lambda: word(scene))
        assert (scene.port.events, scene.faults) == (told, [])
        assert scene.sink.body == b"".join(BEGINNING)
        scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED

    @pytest.mark.parametrize("word", LATE)
    def test_after_the_request(self, word: Callable[[Scene], None]) -> None:
        scene = Scene()
        scene.play(Reply())
        told = list(scene.port.events)
        scene.port.give(lambda: word(scene))
        assert (scene.port.events, scene.faults, scene.sink.body) == (told, [], GOOD)
        scene.check()

    def test_data_without_a_head_is_not_read(self) -> None:
        scene = Scene()
        scene.begin(SILENCE, Reply())
        scene.port.give(lambda: scene.leg.listener.on_data(GOOD))
        assert (scene.sink.body, scene.results) == (b"", [])
        scene.leg.is_over = True
        scene.port.give(lambda: scene.opener.legs[0].listener.on_end(None))
        assert scene.results == [LegResult.FAILED]
        assert scene.legs_ended[0].detail == "an answer without a head"


class TestOwnErrors:
    def test_an_error_while_a_leg_is_stopped_ends_it_all_the_same(self) -> None:
        for leaves in (True, False):
            scene = Scene()
            request = scene.begin(Reply((*BEGINNING, SILENCE)))
            error = scene.leg.stop_error = KeyError("no connection")
            if leaves:
                scene.leave(request)
            else:
                scene.finish(request)
            scene.check()
            assert scene.faults == [error]

    def test_an_error_while_a_leg_is_stopped_for_another_one_is_internal(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE, SILENCE)))
        error = scene.leg.stop_error = KeyError("no connection")
        stop(scene, request)
        scene.check()
        assert scene.faults == [error]
        assert scene.end.outcome is Outcome.FAILED_INTERNALLY
        assert all(state.breaker.state is BreakerState.CLOSED for state in scene.core.replicas)

    def test_an_error_once_the_client_has_read_ends_the_leg(self) -> None:
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        request = scene.begin(Reply((*BEGINNING, SILENCE)))
        error = KeyError("no connection")

        def fail() -> None:
            raise error

        scene.leg.resume = fail  # type: ignore[method-assign]
        scene.read(request)
        scene.check()
        assert scene.faults == [error]
        assert scene.end.outcome is Outcome.FAILED_INTERNALLY

    def test_an_error_of_the_grace_at_the_end_changes_nothing_for_the_client(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((*GOOD_STREAM, SILENCE)))
        error = scene.leg.stop_error = KeyError("no connection")
        scene.finish(request)
        scene.check()
        assert scene.faults == [error]
        assert scene.end.outcome is Outcome.COMPLETED


class TestTimers:
    def test_a_stream_that_falls_silent_has_failed(self) -> None:
        scene = Scene(AnswerSettings(engine_stall_s=2.0))
        assert scene.play(Reply((ROLE, *GOOD_STREAM[1:3], SILENCE))) is Outcome.FAILED_MIDSTREAM
        (ended,) = scene.legs_ended
        assert (ended.result, ended.detail) == (LegResult.FAILED, "it fell silent")
        assert scene.leg.stops == 1

    def test_one_that_goes_on_now_and_then_has_not(self) -> None:
        scene = Scene(AnswerSettings(engine_stall_s=2.0))
        pieces: list[bytes | object] = [ROLE + token("a")]
        for number in range(10):
            pieces += [SILENCE, token(str(number))]
        request = scene.begin(Reply((*pieces, STOP, DONE)))  # type: ignore[arg-type]
        for _ in range(10):
            scene.wait(1.9)
            scene.leg.go_on()
            scene.play_on(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED

    def test_an_engine_is_not_to_blame_for_a_client_that_reads_slowly(self) -> None:
        scene = Scene(AnswerSettings(engine_stall_s=0.02))
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 0.1
        assert scene.play(Reply()) is Outcome.COMPLETED
        assert scene.sink.body == GOOD

    def test_the_end_is_hurried_only_once_the_client_has_it(self) -> None:
        scene = Scene(AnswerSettings(trailer_grace_s=0.02))
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 0.1
        request = scene.begin(Reply((*GOOD_STREAM, SILENCE)))
        while scene.leg.left > 1:
            scene.wait(0.1)
            assert scene.results == []
            scene.read(request)
            scene.play_on(request)
        assert scene.results == []
        scene.read(request)
        assert scene.results == [LegResult.COMPLETED]
        scene.wait(0.02)
        scene.check()
        assert scene.sink.body == GOOD

    def test_a_connection_that_stays_open_after_done_is_not_waited_for(self) -> None:
        scene = Scene()
        begun_ns = scene.port.now
        assert scene.play(Reply((*GOOD_STREAM, SILENCE))) is Outcome.COMPLETED
        assert scene.port.now - begun_ns == round(scene.settings.trailer_grace_s * 1e9)
        assert scene.results == [LegResult.COMPLETED]
        assert scene.legs_ended[0].output_tokens == 6

    def test_a_fault_after_done_comes_too_late_to_matter(self) -> None:
        scene = Scene()
        assert scene.play(Reply((*GOOD_STREAM, FAILED))) is Outcome.COMPLETED


class TestBackPressure:
    def test_a_leg_whose_client_is_slow_is_paused_until_the_client_has_read(self) -> None:
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        request = scene.begin(Reply())
        assert (scene.leg.is_paused, scene.sink.body) == (True, GOOD_STREAM[0])
        scene.read(request)
        scene.play_on(request)
        assert (scene.leg.is_paused, scene.sink.body) == (True, GOOD_STREAM[0] + GOOD_STREAM[1])

    def test_what_a_paused_leg_has_read_already_is_sent_too(self) -> None:
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        request = scene.begin(Reply((GOOD_STREAM[0], *GOOD_STREAM[2:])))
        scene.port.give(lambda: scene.leg.listener.on_data(GOOD_STREAM[1]))
        assert scene.sink.body == GOOD_STREAM[0] + GOOD_STREAM[1]
        scene.finish(request)
        scene.check()
        assert scene.sink.body == GOOD

    def test_a_paused_leg_may_end(self) -> None:
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        scene.begin(Reply((GOOD,)))
        assert scene.leg.is_paused
        scene.port.give(scene.leg.speak)
        scene.check()
        assert (scene.end.outcome, scene.results) == (Outcome.COMPLETED, [LegResult.COMPLETED])

    def test_an_answer_in_one_piece_waits_for_no_reader(self) -> None:
        """A deadline in between would else have the answer asked for, and sent, a second time."""
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        begun_ns = scene.port.now
        assert scene.play(Reply((GOOD_ANSWER,), 200, JSON)) is Outcome.COMPLETED
        assert (scene.sink.body, scene.opener.opened, scene.port.now) == (GOOD_ANSWER, 1, begun_ns)

    def test_a_client_that_reads_without_need_is_no_news(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((*BEGINNING, SILENCE)))
        scene.port.give(request.on_writable)
        assert not scene.leg.is_paused


def two_legs(after: dict[type[Event], list[tuple[LegRole, str]]], first: LegRole = LegRole.WHOLE) -> Scene:
    scene = Scene()
    scene.port.core = OpensLegs(scene.core, after, first)
    return scene


def hand_off() -> Scene:
    """The first leg of a request is a prefill, and a decode runs beside it."""
    return two_legs({RequestArrived: [(LegRole.DECODE, "b")]}, LegRole.PREFILL)


def results(scene: Scene) -> dict[int, LegResult]:
    return {ended.leg: ended.result for ended in scene.legs_ended}


class TestTwoLegs:
    """Two legs at once, in combinations that a core may order."""

    def test_only_the_decode_answers_the_client(self) -> None:
        scene = hand_off()
        assert scene.play(PREFILLED, Reply()) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert results(scene) == {1: LegResult.COMPLETED, 2: LegResult.COMPLETED}

    def test_the_decode_may_be_over_first(self) -> None:
        scene = hand_off()
        assert scene.play(Reply((SILENCE,), headers=JSON), Reply()) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert results(scene) == {1: LegResult.CANCELLED, 2: LegResult.COMPLETED}

    @pytest.mark.parametrize("failing", [1, 2])
    def test_whichever_leg_fails_before_the_first_token_the_request_is_tried_again(self, failing: int) -> None:
        scene = hand_off()
        legs = {1: Reply((SILENCE,), headers=JSON), 2: Reply((ROLE, SILENCE))}
        legs[failing] = Reply((SILENCE, FAILED))
        request = scene.begin(legs[1], legs[2], Reply())
        scene.opener.legs[failing - 1].go_on()
        scene.finish(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        told = [(ended.attempt, ended.leg, ended.result) for ended in scene.legs_ended]
        assert told == [
            (1, failing, LegResult.FAILED),
            (1, 3 - failing, LegResult.CANCELLED),
            (2, 1, LegResult.COMPLETED),
        ]

    def test_a_prefill_that_finds_fault_with_the_request_answers_the_client(self) -> None:
        scene = hand_off()
        refusal = Reply((b'{"error":{"message":"too long","code":400}}',), status=400, headers=JSON)
        assert scene.play(refusal, Reply((SILENCE,))) is Outcome.CLIENT_ERROR
        assert scene.sink.head is not None
        assert scene.sink.head.status == 400

    @pytest.mark.parametrize(
        "late", [Reply((SILENCE, *GOOD_STREAM)), Reply((SILENCE, b'{"choices":[]}'), headers=JSON)]
    )
    def test_a_leg_that_comes_while_another_answers_is_not_heard(self, late: Reply) -> None:
        """The late leg's bytes would be mixed with the other leg's, and a whole answer cannot follow a stream."""
        scene = two_legs({FirstToken: [(LegRole.WHOLE, "b")]})
        request = scene.begin(Reply((*BEGINNING, SILENCE)), late)
        if not scene.leg.is_over:
            scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.end.outcome is Outcome.FAILED_MIDSTREAM
        assert scene.sink.body == b"".join(BEGINNING)
        assert results(scene) == {1: LegResult.CANCELLED, 2: LegResult.FAILED}

    @pytest.mark.parametrize(
        "scripts",
        [
            (SILENCE, SILENCE),
            (Reply((SILENCE,), headers=JSON), SILENCE),
            (SILENCE, Reply((ROLE, *GOOD_STREAM[1:3], SILENCE))),
            (Reply((SILENCE,), headers=JSON), Reply((ROLE, *GOOD_STREAM[1:3], SILENCE))),
        ],
    )
    def test_every_leg_is_ended_before_the_request_is_given_up(self, scripts: tuple[Script, ...]) -> None:
        scene = hand_off()
        scene.leave(scene.begin(*scripts))
        scene.check()
        assert [type(event) for event in scene.port.events[-3:]] == [LegEnded, LegEnded, RequestAbandoned]
        assert set(results(scene).values()) == {LegResult.CANCELLED}
        assert scene.end.outcome is Outcome.ABANDONED

    @pytest.mark.parametrize("turns", range(12))
    def test_a_client_may_leave_at_any_turn_of_a_run_that_would_complete(self, turns: int) -> None:
        scene = hand_off()
        request = scene.request(PREFILLED, Reply())
        request.begin()
        for _ in range(turns):
            scene.turn(request)
        scene.leave(request)
        scene.check()
        assert scene.end.outcome in (Outcome.COMPLETED, Outcome.ABANDONED)
        if scene.end.outcome is Outcome.COMPLETED:
            assert scene.sink.body == GOOD
        assert sorted(ended.leg for ended in scene.legs_ended) == [1, 2]

    def test_an_error_of_ours_in_one_leg_stops_the_other(self) -> None:
        scene = hand_off()
        error = KeyError("choices")
        assert scene.play(Reply((SILENCE,), headers=JSON), Reply((*BEGINNING, error))) is Outcome.FAILED_INTERNALLY
        assert results(scene) == {1: LegResult.CANCELLED, 2: LegResult.INTERNAL}
        assert scene.faults == [error]


LONGER_THAN_IT_TAKES = (
    b'{"error":{"message":"This model\'s maximum context length is 8192 tokens. However, your prompt contains at least '
    b'8193 input tokens.","type":"BadRequestError","param":"input_tokens","code":400}}'
)
AS_A_STATUS = Reply((LONGER_THAN_IT_TAKES,), status=400, headers=JSON)
AS_AN_EVENT = Reply((b"data: " + LONGER_THAN_IT_TAKES + b"\n\n", DONE))


class TestTooLong:
    @staticmethod
    def two_pools() -> Scene:
        """Two pools: `a` is short, `b` is long."""
        scene = Scene()
        members = (member("a", SHORT), member("b", LONG))
        scene.port.submit(AssignmentApplied(2, members, (), pools=POOLS))
        scene.probe()
        return scene

    @pytest.mark.parametrize("refusal", [AS_A_STATUS, AS_AN_EVENT])
    def test_what_is_too_long_for_one_pool_is_had_from_a_longer_one(self, refusal: Reply) -> None:
        scene = self.two_pools()
        assert scene.play(refusal, Reply()) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert scene.results == [LegResult.TOO_LONG, LegResult.COMPLETED]
        assert scene.legs_ended[0].too_long == TooLong(8192, 8193)
        assert scene.summary.attempts == ["replica:a: too_long", "replica:b: completed"]

    def test_the_last_one_to_refuse_it_tells_the_client_in_its_own_words(self) -> None:
        scene = self.two_pools()
        assert scene.play(AS_A_STATUS, AS_A_STATUS) is Outcome.CLIENT_ERROR
        assert scene.results == [LegResult.TOO_LONG, LegResult.CLIENT_ERROR]
        assert scene.sink.body == LONGER_THAN_IT_TAKES
        assert scene.legs_ended[1].too_long is not None

    def test_where_pools_do_not_differ_it_is_the_clients_at_once(self) -> None:
        scene = Scene()
        assert scene.play(AS_A_STATUS) is Outcome.CLIENT_ERROR
        assert scene.sink.body == LONGER_THAN_IT_TAKES


class BoastfulAnswer:
    """Kept answer with a count of tokens that cannot be."""

    said_tokens = 10**320

    def __init__(self, kept: KeptAnswer | None) -> None:
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)


def test_an_impossible_count_of_a_broken_answer_is_not_told() -> None:
    scene = Scene()

    def keep(*about: Any, **more: Any) -> Any:
        return BoastfulAnswer(keep_answer(*about, **more))

    scene.context = replace(scene.context, keep_answer=keep)
    body = b'{"model":"llama","messages":[{"role":"user","content":"hello"}],"stream":true}'
    rest = Reply((ROLE, token("b"), STOP, DONE))
    assert scene.play(Reply((*BEGINNING, FAILED)), rest, body=body, hold=lambda _: True) is Outcome.COMPLETED
    first = scene.legs_ended[0]
    assert (first.remainder is not None, first.output_tokens) == (True, None)


class TestPeers:
    @staticmethod
    def scene() -> Scene:
        scene = Scene()
        scene.probe(waiting=1)
        scene.hear()
        return scene

    def test_a_forward_that_a_peer_accepts_is_reported_as_accepted(self) -> None:
        scene = self.scene()
        assert scene.play(Reply()) is Outcome.COMPLETED
        assert scene.count(LegAccepted) == 1

    def test_its_last_word_counts_where_its_stream_says_nothing(self) -> None:
        """Usage of an engine at a peer may be missing in the stream and come with the peer's last message."""
        scene = self.scene()
        assert scene.play(Reply((*BEGINNING, STOP, DONE), counted=TokenUsage(22, 6))) is Outcome.COMPLETED
        (ended,) = scene.legs_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)
        assert (scene.summary.prompt_tokens, scene.summary.output_tokens) == (22, 6)

    def test_what_the_client_is_shown_counts_first(self) -> None:
        scene = self.scene()
        assert scene.play(Reply((*BEGINNING, STOP, USAGE, DONE), counted=TokenUsage(1, 1))) is Outcome.COMPLETED
        (ended,) = scene.legs_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    def test_a_peer_that_never_says_its_last_word_is_not_waited_for(self) -> None:
        scene = self.scene()
        reply = Reply((*BEGINNING, STOP, DONE, SILENCE), counted=TokenUsage(22, 6))
        assert scene.play(reply) is Outcome.COMPLETED
        (ended,) = scene.legs_ended
        assert (ended.result, ended.prompt_tokens) == (LegResult.COMPLETED, None)
        assert scene.sink.body == b"".join(BEGINNING) + STOP + DONE

    def test_a_peers_failure_is_handed_on_with_its_details(self) -> None:
        scene = self.scene()
        failure = LegFailure(LegResult.FAILED, "it has gone", has_reached=False, is_final=True)
        scene.play(failure, FAILED)
        (first, *_) = scene.legs_ended
        assert (first.detail, first.has_reached, first.is_final) == ("it has gone", False, True)
