from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.vocabulary import LegResult, RefusalReason
from gateway.peers.exchange.batches import UNASKED_BYTES_MAX
from gateway.peers.exchange.wasted_frames import WASTED_MAX
from gateway.peers.forward_messages import ForwardMessage
from gateway.request.legs import LegFailure
from protos.mesh.v1 import peer_pb2 as pb
from tests.support.exchanges import PipedCall, Taken, Turns, begun, opened, piped, turning_while

CHUNK = b"data: x\n\n"


async def failure_of(forward: Taken) -> LegFailure:
    await turning_while(lambda: forward.failure is None)
    assert forward.failure is not None
    return forward.failure


async def until_said(forward: Taken, count: int) -> None:
    await turning_while(lambda: len(forward.words) < count)


async def until_broken(call: PipedCall) -> None:
    await turning_while(lambda: not call.is_cancelled)


async def test_ids_grow_and_each_forward_hears_its_own_words() -> None:
    async with piped() as (stream, peer, _):
        one, other = await begun(stream, peer, 2)
        peer.out[2].put(b"two")
        peer.ends(2)
        peer.out[1].put(b"one")
        await until_said(one, 1)
        await until_said(other, 2)
        assert one.words == [ForwardMessage("data", b"one")]
        assert other.words == [ForwardMessage("data", b"two"), ForwardMessage("ended", pb.Ended(outcome="completed"))]
        third = opened(stream, b"x")
        await turning_while(lambda: 3 not in peer.requests)
        assert stream.forwards == 2
        one.leave()
        third.leave()


async def test_a_large_request_goes_in_pieces_and_no_further_than_its_credit() -> None:
    async with piped() as (stream, peer, call):
        request = bytes(range(256)) * 4096
        forward = opened(stream, request)
        await turning_while(lambda: len(peer.requests.get(1, b"")) < UNASKED_BYTES_MAX)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(peer.requests[1]) == UNASKED_BYTES_MAX
        peer.says(forward=1, credit=len(request))
        await turning_while(lambda: len(peer.requests[1]) < len(request))
        assert peer.requests[1] == request
        assert max(map(len, call.to_peer.written)) < 2**18
        forward.leave()


async def test_credit_is_given_half_a_window_at_a_time_as_a_leg_takes_in_what_came() -> None:
    async with piped(window_bytes=1000) as (stream, peer, call):
        (forward,) = await begun(stream, peer, 1)
        peer.out[1].put(bytes(1600))
        await until_said(forward, 1)
        assert [len(forward.data), peer.out[1].unsent_bytes] == [1000, 600]
        await until_said(forward, 2)
        assert len(forward.data) == 1600
        credits = [frame.credit for raw in call.to_peer.written for frame in pb.ExchangeRequest.FromString(raw).frames]
        assert credits == [1000, 1000]
        forward.leave()


async def test_a_stalled_reader_among_200_streams_delays_no_other_by_more_than_two_turns_of_the_loop() -> None:
    """Turns are counted from the peer's putting a chunk in until the leg gets it. The stalled forward's window
    is full.
    """
    streams = 200
    async with piped(window_bytes=16_384) as (stream, peer, _):
        forwards = await begun(stream, peer, streams)
        stalled, others = forwards[0], forwards[1:]
        stalled.pauses_after = 1
        with Turns() as turns:
            for _ in range(200):
                put_at = turns.now
                for number in range(1, streams + 1):
                    peer.out[number].put(CHUNK * 100)
                await turning_while(lambda: not all(each.words for each in others))
                assert turns.now - put_at <= 2
                for each in others:
                    each.words.clear()
            assert len(stalled.words) == 1
            assert peer.out[1].unsent_bytes > 100_000, "the stalled one has had no more than its window"
            for number in range(2, streams + 1):
                peer.says(forward=number, ended=pb.Ended(outcome="completed"))
            await turning_while(lambda: not all(each.words for each in others))
            assert {tuple(each.kinds) for each in others} == {("ended",)}
            stalled.leave()


async def test_who_has_had_enough_gets_no_more_until_it_asks_again() -> None:
    """Neither gathered chunks nor new ones are handed out; later they come in order."""
    async with piped() as (stream, peer, _):
        (forward,) = await begun(stream, peer, 1)
        forward.pauses_after = 1
        for piece in (b"one", b"two"):
            peer.says(forward=1, data=piece)
        peer.says(forward=1, data=b"three", ended=pb.Ended(outcome="completed"))
        await turning_while(lambda: stream.forwards)
        assert forward.kinds == ["data"]
        for _ in range(3):
            forward.forward.resume()
        assert [word.said for word in forward.words[:3]] == [b"one", b"two", b"three"]
        assert forward.kinds[3:] == ["ended"]


async def test_leaving_cancels_and_what_is_still_on_its_way_is_expected_until_the_peer_lets_go() -> None:
    ignored: list[None] = []
    async with piped(on_ignored=lambda: ignored.append(None)) as (stream, peer, _):
        (forward,) = await begun(stream, peer, 1)
        forward.leave()
        forward.leave()
        await turning_while(lambda: not peer.cancelled)
        assert peer.cancelled == [1]
        for _ in range(WASTED_MAX + 1):
            peer.says(forward=1, data=b"late")
        peer.says(forward=1, last=True)
        await turning_while(lambda: stream.forwards)
        assert not ignored
        peer.says(forward=1, data=b"too late")
        await turning_while(lambda: not ignored)
        assert stream.broken is None


async def test_one_that_was_left_before_it_went_out_is_never_heard_of() -> None:
    async with piped() as (stream, peer, _):
        opened(stream, b"request").leave()
        forward = opened(stream, b"other")
        await turning_while(lambda: not peer.requests)
        assert (list(peer.requests), stream.forwards) == ([2], 1)
        forward.leave()


async def test_a_refusal_before_the_request_was_all_sent_is_answered_with_a_cancel() -> None:
    """The cancel says that no more of the request follows."""
    async with piped() as (stream, peer, _):
        forward = opened(stream, bytes(2**20))
        await turning_while(lambda: not peer.requests)
        peer.says(forward=1, refused=pb.Refused(reason="busy"))
        await until_said(forward, 1)
        assert forward.kinds == ["refused"]
        forward.leave()
        await turning_while(lambda: not peer.cancelled)
        assert stream.forwards == 0


HOSTILE: dict[str, list[dict[str, Any]]] = {
    "more than it had credit for": [{"forward": 1, "data": bytes(1001)}],
    "more credit than the protocol allows": [{"forward": 1, "credit": 2**41}],
    "frames in a second that move nothing": [{"forward": 9, "data": b"x"}] * (WASTED_MAX + 1),
}


@pytest.mark.parametrize("why", HOSTILE)
async def test_a_peer_that_breaks_a_rule_loses_the_stream_and_its_forwards_have_failed(why: str) -> None:
    async with piped(window_bytes=1000) as (stream, peer, call):
        one, other = await begun(stream, peer, 2)
        for fields in HOSTILE[why]:
            peer.says(**fields)
        for failure in (await failure_of(one), await failure_of(other)):
            assert failure.result is LegResult.FAILED
            assert why in failure.detail
        await until_broken(call)


async def test_empty_messages_and_credit_by_the_byte_are_a_flood() -> None:
    for raw in (b"", pb.ExchangeResponse(frames=[pb.AnswerFrame(forward=1, credit=1)]).SerializeToString()):
        async with piped() as (stream, peer, call):
            (forward,) = await begun(stream, peer, 1)
            for _ in range(WASTED_MAX + 1):
                call.from_peer.put(raw)
            assert "move nothing" in (await failure_of(forward)).detail


async def test_half_a_frame_ends_the_stream_with_a_reason() -> None:
    async with piped() as (stream, peer, call):
        (forward,) = await begun(stream, peer, 1)
        whole = pb.ExchangeResponse(frames=[pb.AnswerFrame(forward=1, data=b"abc")]).SerializeToString()
        call.from_peer.put(whole[:-1])
        assert "bytes that are no message" in (await failure_of(forward)).detail


async def test_each_forward_of_a_killed_stream_ends_once() -> None:
    async with piped() as (stream, peer, call):
        forwards = await begun(stream, peer, 500)
        call.from_peer.put(None)
        failures = [await failure_of(forward) for forward in forwards]
        assert {failure.result for failure in failures} == {LegResult.FAILED}
        assert len({id(failure) for failure in failures}) == 500, "each leg has one of its own"
        for forward in forwards:
            forward.leave()
        assert (stream.forwards, stream.has_closed) == (0, False)


async def test_a_peer_that_closes_has_refused_what_it_has_said_nothing_of() -> None:
    async with piped() as (stream, peer, call):
        (answered,) = await begun(stream, peer, 1)
        crossed = opened(stream, b"request")
        call.from_peer.put(pb.ExchangeResponse(closing=True).SerializeToString())
        await turning_while(lambda: not stream.is_retiring)
        call.from_peer.put(None)
        refused, failed = await failure_of(crossed), await failure_of(answered)
        assert (refused.result, refused.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)
        assert failed.result is LegResult.FAILED


async def test_a_stream_that_retires_lets_its_forwards_end_and_closes_behind_the_last() -> None:
    async with piped() as (stream, peer, call):
        (forward,) = await begun(stream, peer, 1)
        stream.retire()
        peer.out[1].put(CHUNK)
        peer.ends(1)
        await until_said(forward, 2)
        assert forward.kinds == ["data", "ended"]
        await turning_while(lambda: not call.is_half_closed)
        await until_broken(call)
        assert stream.has_closed


async def test_words_that_wait_for_a_reader_are_bounded() -> None:
    """Credit bounds the bytes of an answer, and not its heads."""
    async with piped() as (stream, peer, _):
        (forward,) = await begun(stream, peer, 1)
        forward.pauses_after = 1
        peer.says(forward=1, data=b"x")
        for _ in range(8):
            peer.says(forward=1, head=pb.Head(status=200))
        await turning_while(lambda: len(forward.forward._waiting) < 8)
        assert stream.forwards
        peer.says(forward=1, head=pb.Head(status=200))
        await turning_while(lambda: stream.forwards)
        forward.leave()
