"""Several legs of one request at once, in combinations that a core may order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.events import Event
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, FirstToken, LegEnded, RequestArrived, TooLong
from gateway.core.vocabulary import (
    Decision,
    LegResult,
    LegRole,
    Outcome,
    PlacementReason,
    ReplicaId,
    RequestId,
    replica_target,
)
from gateway.request.answers import TokenUsage
from gateway.request.legs import LegFailure, OutboundRequest, RequestSummary, SinkGone
from gateway.request.mailbox import LegScope
from gateway.request.relay import Feed, Relay, RelaySettings
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, USAGE, token
from tests.support.core import profile
from tests.support.gateways import until
from tests.support.owning import FAILED, GOOD, JSON, Reply, Scene, ScriptedLeg
from tests.support.pools import LONG, POOLS, SHORT, member
from tests.support.second_legs import OpensLegs

DECISION = Decision(PlacementReason.LOCAL_POLICY, 0, 0, 1, 0)
PREFILLED = Reply((b'{"kv_transfer_params":{"blocks":[1]}}',), headers=JSON)


def start(leg: int) -> StartLeg:
    at = replica_target(ReplicaId("ab"[leg - 1]))
    return StartLeg(RequestId("r1"), 1, leg, LegRole.WHOLE, at, DECISION, deadline_ns=10**18)


DECODES_BESIDE: dict[type[Event], list[tuple[LegRole, str]]] = {RequestArrived: [(LegRole.DECODE, "b")]}


def two_legs(after: dict[type[Event], list[tuple[LegRole, str]]], first: LegRole = LegRole.WHOLE) -> Scene:
    scene = Scene()
    scene.driver._core = OpensLegs(scene.core, dict(after), first)
    return scene


def hand_off() -> Scene:
    """The first leg of a request is a prefill, and a decode runs beside it."""
    return two_legs(DECODES_BESIDE, LegRole.PREFILL)


def results(scene: Scene) -> dict[int, LegResult]:
    return {ended.leg: ended.result for ended in scene.attempts_ended}


async def test_only_the_decode_answers_the_client() -> None:
    scene = hand_off()
    assert await scene.play(PREFILLED, Reply()) is Outcome.COMPLETED
    assert scene.sink.body == GOOD
    assert results(scene) == {1: LegResult.COMPLETED, 2: LegResult.COMPLETED}
    assert len(scene.tasks) == 1, "the first leg takes no task"


async def test_the_decode_may_be_over_first() -> None:
    scene = hand_off()
    never = asyncio.Event()
    assert await scene.play(Reply((never,), headers=JSON), Reply()) is Outcome.COMPLETED
    assert scene.sink.body == GOOD
    assert results(scene) == {1: LegResult.CANCELLED, 2: LegResult.COMPLETED}


@pytest.mark.parametrize("failing", [1, 2])
async def test_whichever_leg_fails_before_the_first_token_the_request_is_tried_again(failing: int) -> None:
    scene = hand_off()
    never, gate = asyncio.Event(), asyncio.Event()
    legs = {1: Reply((never,), headers=JSON), 2: Reply((ROLE, never))}
    legs[failing] = Reply((gate, FAILED))
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(scene.play(legs[1], legs[2], Reply()))
        await until(lambda: scene.opener.opened == 2)
        gate.set()
    assert playing.result() is Outcome.COMPLETED
    assert scene.sink.body == GOOD
    told = [(ended.attempt, ended.leg, ended.result) for ended in scene.attempts_ended]
    assert told[0] == (1, failing, LegResult.FAILED)
    assert told[1] == (1, 3 - failing, LegResult.CANCELLED)
    assert told[2] == (2, 1, LegResult.COMPLETED)
    assert len(scene.tasks) == 1, "what is tried again runs in the owner's own task"


async def test_a_prefill_that_finds_fault_with_the_request_answers_the_client() -> None:
    scene = hand_off()
    never = asyncio.Event()
    refusal = Reply((b'{"error":{"message":"too long","code":400}}',), status=400, headers=JSON)
    assert await scene.play(refusal, Reply((never,))) is Outcome.CLIENT_ERROR
    assert scene.sink.head is not None
    assert scene.sink.head.status == 400


async def test_a_leg_that_comes_while_another_answers_is_not_heard() -> None:
    """The late leg's bytes would be mixed with the other leg's."""
    scene = two_legs({FirstToken: [(LegRole.WHOLE, "b")]})
    never, gate = asyncio.Event(), asyncio.Event()
    beginning = (ROLE, token("a"))
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(scene.play(Reply((*beginning, never)), Reply((gate, *GOOD_STREAM))))
        await until(lambda: scene.sink.has_drained)
        gate.set()
    assert playing.result() is Outcome.FAILED_MIDSTREAM
    assert scene.sink.body == b"".join(beginning)
    assert results(scene) == {1: LegResult.CANCELLED, 2: LegResult.FAILED}


async def test_a_leg_that_comes_after_another_goes_on_behind_what_was_sent() -> None:
    """Status and headers went out with the first leg; the next leg's tokens follow the first one's."""
    scene = Scene()
    relay = Relay(
        scene.driver,
        scene.clock,
        scene.settings,
        scene.sink,
        outbound=OutboundRequest(profile("r1"), "/v1/chat/completions", (), b"{}"),
        summary=RequestSummary(),
        arrived_ns=scene.clock.now_ns(),
    )
    beginning = (ROLE, token("a"))
    first, second = (start(leg) for leg in (1, 2))
    told: list[LegEnded] = []
    with pytest.raises(LegFailure):
        await Feed(relay, first, LegScope(), told.append).run(ScriptedLeg(Reply((*beginning, FAILED)), first))
    ended = await Feed(relay, second, LegScope(), told.append).run(ScriptedLeg(Reply(), second))
    assert (ended.leg, ended.result) == (2, LegResult.COMPLETED)
    assert told == [ended]
    assert scene.sink.body == b"".join(beginning) + GOOD
    assert relay.summary.ran_at is not None
    assert relay.summary.ran_at.replica_id == "b"
    scene.driver.close()


async def test_what_was_never_sent_is_not_counted_as_sent() -> None:
    """Tokens of an engine that does not count them are counted by the events that the client got."""
    scene = Scene()
    held = Reply((ROLE, ROLE, ROLE, FAILED))
    assert await scene.play(held, Reply()) is Outcome.COMPLETED
    (_, _, again) = scene.finished[0]
    alone = Scene()
    await alone.play(Reply())
    assert again.output_events == alone.finished[0][2].output_events


async def test_an_answer_in_one_piece_cannot_go_on_behind_a_stream() -> None:
    scene = two_legs({FirstToken: [(LegRole.WHOLE, "b")]})
    never = asyncio.Event()
    whole = Reply((b'{"choices":[]}',), headers=JSON)
    assert await scene.play(Reply((ROLE, token("a"), never)), whole) is Outcome.FAILED_MIDSTREAM
    assert results(scene) == {1: LegResult.CANCELLED, 2: LegResult.FAILED}


async def test_a_client_that_a_leg_beside_finds_gone_is_gone_for_the_owner() -> None:
    scene = hand_off()
    never = asyncio.Event()
    scene.sink.failure = SinkGone("nobody is there")
    owner = scene.owner(Reply((never,), headers=JSON), Reply())
    with pytest.raises(ConnectionResetError):
        await scene.run(owner)
    scene.check()
    assert scene.finished[0][1].outcome is Outcome.ABANDONED


HELD = [
    pytest.param((asyncio.Event, asyncio.Event), id="while both connect"),
    pytest.param((Reply, asyncio.Event), id="while one connects"),
    pytest.param((asyncio.Event, Reply), id="while the other connects"),
    pytest.param((Reply, Reply), id="while both are read"),
]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_a_client_may_leave_at_any_point(held: tuple[type, type], turns: int) -> None:
    scene = hand_off()
    never = asyncio.Event()
    replies = [Reply((ROLE, *GOOD_STREAM[1:3], never)) if kind is Reply else asyncio.Event() for kind in held]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.run(scene.owner(*replies)))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
    if scene.finished:  # False if cancelled before its first step
        scene.check()
        assert scene.finished[0][1].outcome is Outcome.ABANDONED
        assert set(results(scene).values()) == {LegResult.CANCELLED}
    else:
        assert turns == 0


@pytest.mark.parametrize("turns", range(30))
async def test_a_client_may_leave_at_any_turn_of_a_run_that_would_complete(turns: int) -> None:
    """Each leg ends once and the request has one outcome, at whatever turn the client leaves."""
    scene = hand_off()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.run(scene.owner(PREFILLED, Reply())))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
    if not scene.finished:
        assert turns == 0, "cancelled before its first step, nobody has heard of it"
        return
    scene.check()
    (_, end, _) = scene.finished[0]
    assert end.outcome in (Outcome.COMPLETED, Outcome.ABANDONED)
    if end.outcome is Outcome.COMPLETED:
        assert scene.sink.body == GOOD
    assert sorted(ended.leg for ended in scene.attempts_ended) == [1, 2]


async def test_every_leg_is_ended_before_the_request_is_given_up() -> None:
    scene = hand_off()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.run(scene.owner(asyncio.Event(), asyncio.Event())))
        await until(lambda: scene.opener.opened == 2)
        running.cancel()
    scene.check()
    (abandoned,) = (index for index, event in enumerate(scene.events) if isinstance(event, LegEnded) and event.leg == 2)
    assert scene.events[abandoned - 1 : abandoned + 1] == scene.attempts_ended


LONGER_THAN_IT_TAKES = (
    b'{"error":{"message":"This model\'s maximum context length is 8192 tokens. However, your prompt contains at least '
    b'8193 input tokens.","type":"BadRequestError","param":"input_tokens","code":400}}'
)
IN_A_STREAM = b"data: " + LONGER_THAN_IT_TAKES + b"\n\n"
AS_A_STATUS = Reply((LONGER_THAN_IT_TAKES,), status=400, headers=JSON)
AS_AN_EVENT = Reply((IN_A_STREAM, b"data: [DONE]\n\n"))


def two_pools() -> Scene:
    """Two pools: `a` is short, `b` is long."""
    scene = Scene()
    members = (member("a", SHORT), member("b", LONG))
    scene.driver.submit(AssignmentApplied(2, members, (), pools=POOLS))
    scene.probe(waiting=0)
    return scene


@pytest.mark.parametrize("refusal", [AS_A_STATUS, AS_AN_EVENT])
async def test_what_is_too_long_for_one_pool_is_had_from_a_longer_one(refusal: Reply) -> None:
    scene = two_pools()
    assert await scene.play(refusal, Reply()) is Outcome.COMPLETED
    assert scene.sink.body == GOOD
    assert scene.results == [LegResult.TOO_LONG, LegResult.COMPLETED]
    assert scene.attempts_ended[0].too_long == TooLong(8192, 8193)
    assert scene.finished[0][2].attempts == ["replica:a: too_long", "replica:b: completed"]


async def test_and_the_last_one_to_refuse_it_tells_the_client_in_its_own_words() -> None:
    scene = two_pools()
    assert await scene.play(AS_A_STATUS, AS_A_STATUS) is Outcome.CLIENT_ERROR
    assert scene.results == [LegResult.TOO_LONG, LegResult.CLIENT_ERROR]
    assert scene.sink.body == LONGER_THAN_IT_TAKES
    assert scene.attempts_ended[1].too_long is not None


async def test_where_pools_are_not_told_apart_it_is_the_clients_at_once() -> None:
    scene = Scene()
    assert await scene.play(AS_A_STATUS) is Outcome.CLIENT_ERROR
    assert scene.sink.body == LONGER_THAN_IT_TAKES


class TestCountedByAPeer:
    """Usage of an engine at a peer may be missing in the stream and come with the peer's last message."""

    def scene(self) -> Scene:
        scene = Scene(RelaySettings(trailer_grace_s=0.01))
        scene.probe(waiting=1)
        scene.hear()
        return scene

    async def test_its_last_word_counts_where_its_stream_says_nothing(self) -> None:
        scene = self.scene()
        reply = Reply((ROLE, token("a"), STOP, DONE), counted=TokenUsage(22, 6))
        assert await scene.play(reply) is Outcome.COMPLETED
        (ended,) = scene.attempts_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)
        (_, _, summary) = scene.finished[0]
        assert (summary.prompt_tokens, summary.output_tokens) == (22, 6)

    async def test_what_the_client_is_shown_counts_first(self) -> None:
        scene = self.scene()
        reply = Reply((ROLE, token("a"), STOP, USAGE, DONE), counted=TokenUsage(1, 1))
        assert await scene.play(reply) is Outcome.COMPLETED
        (ended,) = scene.attempts_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    async def test_a_peer_that_never_says_its_last_word_is_not_waited_for(self) -> None:
        scene = self.scene()
        reply = Reply((ROLE, token("a"), STOP, DONE, asyncio.Event()), counted=TokenUsage(22, 6))
        assert await scene.play(reply) is Outcome.COMPLETED
        (ended,) = scene.attempts_ended
        assert (ended.result, ended.prompt_tokens) == (LegResult.COMPLETED, None)
        assert scene.sink.body == ROLE + token("a") + STOP + DONE


@pytest.mark.parametrize("room_bytes", [16 * 1024, 17 * 1024])
async def test_what_is_left_to_ask_for_is_counted_with_the_body_that_it_is_made_of(room_bytes: int) -> None:
    """The rest is another body as large as the client's. Without room for it, no target is asked."""
    held = 0

    def hold(more: int) -> bool:
        nonlocal held
        fits = held + more <= room_bytes
        held += more if fits else 0
        return fits

    scene, summary = Scene(), RequestSummary()
    body = b'{"model":"llama","messages":[{"role":"user","content":"hello"}],"stream":true}'
    relay = Relay(
        scene.driver,
        scene.clock,
        scene.settings,
        scene.sink,
        outbound=OutboundRequest(profile("r1"), "/v1/chat/completions", (), body),
        summary=summary,
        arrived_ns=scene.clock.now_ns(),
        hold=hold,
    )
    keep = relay.keeper(replace(start(1), may_break=True))
    assert keep is not None
    keep(ROLE + token("a"))
    rest = relay.rest_profile()
    keep(token("b"))
    is_short = room_bytes == 16 * 1024
    assert (rest is None, relay.transcript_dropped) == (is_short, is_short), summary.why_unresumed
    assert ("room" in summary.why_unresumed) is is_short
    if rest is not None:
        again = relay.rest_profile()
        assert again is not None
        assert held == 16 * 1024 + len(relay.outbound_of(replace(start(1), resume=2)).body), "the first one is gone"
    scene.driver.close()
