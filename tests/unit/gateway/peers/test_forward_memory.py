from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from gateway.config.sections import PeeringConfig
from gateway.peers.forward_memory import ForwardMemory, MemoryClaim


def room() -> ForwardMemory:
    return ForwardMemory(1000, 650, 7)


def held(stack: ExitStack, in_room: ForwardMemory, peer: str, size: int) -> MemoryClaim:
    found = in_room.place_of(peer, size)
    assert found is not None
    return stack.enter_context(closing(found))


def test_a_place_is_as_large_as_was_asked_for_and_gives_all_of_it_back() -> None:
    peers = room()
    with ExitStack() as stack:
        held(stack, peers, "a", 7)
        assert (peers.bytes, peers.peers) == (7, 1)
    assert (peers.bytes, peers.peers) == (0, 0)


def test_no_peer_gets_more_than_its_part_and_another_still_gets_one() -> None:
    peers = room()
    with ExitStack() as stack:
        for _ in range(6):
            held(stack, peers, "greedy", 99)
        assert peers.place_of("greedy", 99) is None
        for _ in range(4):
            held(stack, peers, "other", 100)
        assert peers.place_of("other", 100) is None, "all of it together is bounded, too"
        held(stack, peers, "other", 6)
    assert (peers.bytes, peers.peers) == (0, 0)


def test_no_peer_has_more_places_than_its_part_however_small_its_requests_are() -> None:
    peers = room()
    with ExitStack() as stack:
        first = held(stack, peers, "greedy", 1)
        for _ in range(6):
            held(stack, peers, "greedy", 1)
        assert peers.place_of("greedy", 1) is None
        held(stack, peers, "other", 1)
        for _ in range(2):
            first.close()
        held(stack, peers, "greedy", 1)
        assert peers.place_of("greedy", 1) is None
    assert (peers.bytes, peers.peers, peers._places) == (0, 0, {})


def test_a_place_that_was_refused_takes_nothing() -> None:
    peers = room()
    for _ in range(8):
        assert peers.place_of("a", 651) is None
    assert (peers.bytes, peers.fits("a", 650)) == (0, True)
    assert peers.place_of("a", 650) is not None


def test_a_place_grows_with_the_answer_that_is_kept_within_the_same_bounds() -> None:
    peers = room()
    with ExitStack() as stack:
        kept = held(stack, peers, "a", 100)
        assert kept.keep(550)
        assert not kept.keep(1), "it is the peer's last byte"
        assert peers.bytes == 650
        assert kept.keep(-300)
        assert peers.bytes == 350
        assert kept.keep(0)
        held(stack, peers, "b", 650)
        assert not kept.keep(1), "all of it together is bounded, too"
    assert (peers.bytes, peers.peers) == (0, 0)


@pytest.mark.parametrize("closings", [2, 5])
def test_a_place_that_is_closed_again_gives_nothing_back_again(closings: int) -> None:
    peers = room()
    with ExitStack() as stack:
        held(stack, peers, "a", 10)
        place = held(stack, peers, "a", 20)
        for _ in range(closings):
            place.close()
            assert peers.bytes == 10


def test_its_bounds_are_the_configuration_s() -> None:
    peers = ForwardMemory.of(PeeringConfig(forwards_held_max_bytes=20, forwards_held_peer_max_bytes=10))
    assert (peers.fits("a", 10), peers.fits("a", 11)) == (True, False)
    assert peers.place_of("a", 10)
    assert peers.place_of("b", 10)
    assert peers.place_of("c", 1) is None


@pytest.mark.parametrize(("peer_bytes", "forwards", "places"), [(10, 8, 4), (20, 8, 8), (1, 8, 1)])
def test_a_peer_s_part_of_the_places_is_that_of_the_memory(peer_bytes: int, forwards: int, places: int) -> None:
    peers = ForwardMemory.of(
        PeeringConfig(forwards_max=forwards, forwards_held_max_bytes=20, forwards_held_peer_max_bytes=peer_bytes)
    )
    assert [peers.place_of("a", 0) is not None for _ in range(9)] == [True] * places + [False] * (9 - places)
