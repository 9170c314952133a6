from __future__ import annotations

import asyncio
from contextlib import ExitStack

from gateway.peers.room import WAITING_EACH_MAX, PeerRoom, Place


def room(turn_wait_s: float = 60.0) -> PeerRoom:
    return PeerRoom(1000, 650, message_bytes_max=100, turn_wait_s=turn_wait_s)


async def place(in_room: PeerRoom, peer: str = "a") -> Place:
    found = await in_room.place_for(peer)
    assert found is not None
    return found


async def held(stack: ExitStack, in_room: PeerRoom, peer: str, size: int) -> Place:
    entered = stack.enter_context(await place(in_room, peer))
    entered.settle(size)
    return entered


async def test_what_is_on_its_way_is_as_large_as_it_may_be_and_then_as_large_as_it_is() -> None:
    peers = room()
    with await place(peers) as coming:
        assert peers.bytes == 100
        coming.settle(7)
        assert peers.bytes == 7
    assert (peers.bytes, peers.peers) == (0, 0)


async def test_what_never_comes_leaves_nothing() -> None:
    peers = room()
    with await place(peers):
        pass
    assert (peers.bytes, peers.peers) == (0, 0)


async def test_no_peer_gets_more_than_its_part_and_another_still_gets_one() -> None:
    peers = room()
    with ExitStack() as stack:
        for _ in range(6):
            await held(stack, peers, "greedy", 99)
        assert await peers.place_for("greedy") is None
        for _ in range(4):
            await held(stack, peers, "other", 100)
        assert await peers.place_for("other") is None, "all of it together is bounded, too"
    assert (peers.bytes, peers.peers) == (0, 0)


async def test_where_only_messages_on_their_way_are_before_it_a_forward_waits_for_its_turn() -> None:
    peers = room()
    with ExitStack() as stack:
        coming = [stack.enter_context(await place(peers)) for _ in range(6)]
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(peers.place_for("a"))
            await asyncio.sleep(0)
            assert not waiting.done()
            coming[0].settle(1)
        assert waiting.result() is not None


async def test_it_does_not_wait_for_requests_that_run() -> None:
    peers = room()
    with ExitStack() as stack:
        coming = [stack.enter_context(await place(peers)) for _ in range(6)]
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(peers.place_for("a"))
            for each in coming:
                await asyncio.sleep(0)
                each.settle(100)
        assert waiting.result() is None
    assert (peers.bytes, peers.peers) == (0, 0)


async def test_nor_for_ever() -> None:
    peers = room(turn_wait_s=0.001)
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(await place(peers))
        assert await peers.place_for("a") is None


async def test_those_that_wait_are_bounded() -> None:
    peers = room()
    with ExitStack() as stack:
        coming = [stack.enter_context(await place(peers)) for _ in range(6)]
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(peers.place_for("a")) for _ in range(WAITING_EACH_MAX)]
            await asyncio.sleep(0)
            assert await peers.place_for("a") is None
            for each in coming:
                each.settle(1)
        assert None not in [each.result() for each in waiting]
    assert (peers.bytes, peers.peers) == (0, 0)
