from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from gateway.peers.exchange.batches import (
    BATCH_BYTES_MAX,
    CREDIT_MAX,
    GAPS_MAX,
    MESSAGE_BYTES_MAX,
    TURN_BYTES_MIN,
    FrameBatcher,
    Outgoing,
    has_unknown_fields,
    read_message,
)
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb
from tests.support.exchanges import Turns, turning_while

CHAT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
PLENTY = 2**30


def outbox() -> FrameBatcher[pb.AnswerFrame]:
    return FrameBatcher(pb.AnswerFrame, "data")


def frames(message: bytes) -> list[pb.AnswerFrame]:
    return list(pb.ExchangeResponse.FromString(message).frames)


def sent(box: FrameBatcher[pb.AnswerFrame]) -> dict[int, bytes]:
    """Bytes that go out with the next message, by forward."""
    return {each.forward: each.data for each in frames(box.next_message())}


def test_what_comes_together_goes_out_in_one_frame_of_one_message() -> None:
    box = outbox()
    first, second = Outgoing(box, 1, PLENTY), Outgoing(box, 2, PLENTY)
    first.frame.accepted.SetInParent()
    first.frame.head.status = 200
    first.put(b"an ")
    first.put(b"answer")
    first.end_with(lambda frame: frame.ended.CopyFrom(pb.Ended(outcome="completed")))
    second.put(CHAT)
    short, other = frames(box.next_message())
    assert (short.forward, short.HasField("accepted"), short.head.status, short.data) == (1, True, 200, b"an answer")
    assert short.ended.outcome == "completed"
    assert (other.forward, other.data) == (2, CHAT)
    assert box.is_empty
    assert box.next_message() == b""


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 100_000])
def test_a_message_is_what_protobuf_itself_would_write(size: int) -> None:
    box = outbox()
    out = Outgoing(box, 7, PLENTY)
    out.frame.credit = 5
    if size:
        out.put(b"x" * size)
    expected = pb.ExchangeResponse(frames=[pb.AnswerFrame(forward=7, credit=5, data=b"x" * size)])
    assert box.next_message() == expected.SerializeToString()


def test_beside_a_body_of_32_mib_every_chat_goes_out_with_the_next_message() -> None:
    """The body gets the rest of the message, and a whole message when it is alone."""
    box = outbox()
    large = Outgoing(box, 1, PLENTY)
    large.put(bytes(32 << 20))
    chats = [Outgoing(box, number, PLENTY) for number in range(2, 202)]
    total = 0
    for _ in range(20):
        for chat in chats:
            chat.put(CHAT)
        message = box.next_message()
        each = {frame.forward: frame.data for frame in frames(message)}
        assert [each[chat.forward] for chat in chats] == [CHAT] * 200
        assert len(each[1]) == TURN_BYTES_MIN
        total += len(each[1])
    assert len(sent(box)[1]) == BATCH_BYTES_MAX
    assert large.unsent_bytes == (32 << 20) - total - BATCH_BYTES_MAX


def test_two_large_bodies_share_and_nobody_is_left_out() -> None:
    box = outbox()
    outs = [Outgoing(box, number, PLENTY) for number in range(100)]
    for out in outs:
        out.put(bytes(10 * TURN_BYTES_MIN))
    turns = [sent(box) for _ in range(26)]
    for message in turns[:-1]:
        assert sum(map(len, message.values())) <= BATCH_BYTES_MAX + TURN_BYTES_MIN
    for out in outs:
        served = [number for number, message in enumerate(turns) if out.forward in message]
        assert all(later - earlier <= 13 for earlier, later in pairwise(served))
        assert len(served) >= 2


def test_without_credit_bytes_wait_and_words_do_not() -> None:
    box = outbox()
    out = Outgoing(box, 1, 4)
    out.put(b"abcdef")
    out.put(b"gh")
    out.end_with(lambda frame: frame.ended.CopyFrom(pb.Ended(outcome="completed")))
    assert sent(box) == {1: b"abcd"}
    assert box.next_message() == b""
    out.frame.credit = 9
    (frame,) = frames(box.next_message())
    assert (frame.credit, frame.data, frame.HasField("ended")) == (9, b"", False)
    out.give_credit(100)
    (frame,) = frames(box.next_message())
    assert (frame.data, frame.ended.outcome) == (b"efgh", "completed")


def test_credit_has_an_end() -> None:
    out = Outgoing(outbox(), 1, CREDIT_MAX)
    with pytest.raises(WireError, match="more credit than the protocol allows"):
        out.give_credit(1)


def test_what_is_dropped_is_never_said() -> None:
    box = outbox()
    out = Outgoing(box, 1, PLENTY)
    out.frame.head.status = 200
    out.put(b"abc")
    out.end_with(lambda frame: frame.ended.CopyFrom(pb.Ended(outcome="completed")))
    out.drop()
    assert box.next_message() == b""
    assert not out.has_begun


def test_a_writer_is_told_of_room_once_and_not_before() -> None:
    box, told = outbox(), []
    out = Outgoing(box, 1, 10)
    out.put(bytes(30))
    out.when_unsent(15, lambda: told.append(out.unsent_bytes))
    box.next_message()
    assert told == []
    out.give_credit(5)
    box.next_message()
    assert told == [15]
    out.give_credit(15)
    box.next_message()
    assert told == [15]


def test_a_writer_that_asks_again_waits_for_its_last_wish_and_one_that_dropped_all_for_none() -> None:
    box, told = outbox(), []
    out = Outgoing(box, 1, 10)
    out.put(bytes(30))
    out.when_unsent(20, lambda: told.append("room"))
    out.when_unsent(0, lambda: told.append("all is sent"))
    box.next_message()
    assert told == []
    out.give_credit(20)
    box.next_message()
    assert told == ["all is sent"]
    out.put(bytes(30))
    out.when_unsent(0, lambda: told.append("never"))
    out.drop()
    out.frame.last = True
    box.next_message()
    assert told == ["all is sent"]


async def test_a_turn_of_the_loop_is_one_message_whatever_is_being_written() -> None:
    """Chunks put in while a message is written go out in the next one."""
    box, written = outbox(), []
    outs = [Outgoing(box, number, PLENTY) for number in range(50)]
    go_on = asyncio.Event()

    async def write(message: bytes) -> None:
        written.append(len(frames(message)))
        await go_on.wait()

    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(box.send_all(write))
        with Turns() as turns:
            await asyncio.sleep(0)
            for out in outs:
                out.put(CHAT)
            put_at = turns.now
            await turning_while(lambda: not written)
            assert turns.now - put_at <= 2
        for out in outs[:10]:
            out.put(CHAT)
            out.put(CHAT)
        go_on.set()
        box.close()
        await sending
    assert written == [50, 10]


async def _written(box: FrameBatcher[pb.AnswerFrame], then: Sequence[Outgoing[pb.AnswerFrame]] = ()) -> list[int]:
    """Frames in each message: of the chunks already put, and then of one chunk of each of `then`."""
    written: list[int] = []

    async def write(message: bytes) -> None:
        written.append(len(frames(message)))

    sending = asyncio.get_running_loop().create_task(box.send_all(write))
    await turning_while(lambda: not written)
    for out in then:
        out.put(CHAT)
    for _ in range(20):
        await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    return written


async def test_after_a_silence_a_message_goes_at_once_and_the_next_one_gathers_for_the_gap() -> None:
    box = FrameBatcher(pb.AnswerFrame, "data", gap_ns=3600 * 10**9)
    outs = [Outgoing(box, number, PLENTY) for number in range(50)]
    outs[0].put(CHAT)
    assert await _written(box, outs) == [1]
    assert len(frames(box.next_message())) == 50


@pytest.mark.parametrize(("frames_in_it", "gaps"), [(0, 0), (1, 1), (2, 2), (GAPS_MAX, GAPS_MAX), (50, GAPS_MAX)])
def test_the_more_a_message_held_the_longer_the_next_one_gathers(frames_in_it: int, gaps: int) -> None:
    box = FrameBatcher(pb.AnswerFrame, "data", gap_ns=10**9)
    for number in range(frames_in_it):
        Outgoing(box, number, PLENTY).put(CHAT)
    box.say(pb.ExchangeResponse(closing=True).SerializeToString())
    box.next_message()
    assert box.pause_s == gaps


async def test_who_has_more_to_say_than_a_message_takes_does_not_wait() -> None:
    box = FrameBatcher(pb.AnswerFrame, "data", gap_ns=3600 * 10**9)
    out = Outgoing(box, 1, PLENTY)
    out.put(bytes(3 * BATCH_BYTES_MAX))
    assert await _written(box) == [1, 1, 1]


@pytest.mark.parametrize(
    "raw", [b"\xff" * 10, b"\x0a\x05\x08", bytes(MESSAGE_BYTES_MAX + 1)], ids=["garbage", "half", "large"]
)
def test_what_is_no_message_is_a_fault(raw: bytes) -> None:
    with pytest.raises(WireError):
        read_message(pb.ExchangeRequest, raw)


def test_a_field_of_a_later_version_is_seen() -> None:
    known = [each.name for each in pb.AnswerFrame.DESCRIPTOR.fields]
    frame = pb.AnswerFrame(forward=1, last=True)
    assert not has_unknown_fields(frame, known)
    frame.MergeFromString(b"\xfa>\x04news")
    assert has_unknown_fields(frame, known)
    assert frame.last
