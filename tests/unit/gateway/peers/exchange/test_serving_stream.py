"""A forward at its serving end, without sockets, tasks or time of its own: what its origin hears, what its engine's leg
is told, and what it holds here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import Outcome, RequestId
from gateway.peers.exchange import serving_stream as called_module
from gateway.peers.exchange.serving_stream import _UNREAD_BYTES_MAX, _UNREAD_GRACE_S, ServedForward, StreamFault
from gateway.request.proxied import ProxiedRequest
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.engine import ROLE, token
from tests.support.called_forwards import DEADLINE_S, LAST, PIECE, Called, request_of
from tests.support.cycles import left_in_cycles
from tests.support.manual_loop import manual_loop

R1 = RequestId("r-1")
PEERING = PeeringConfig(forwards_max=4)
ACCEPT_S = PEERING.accept_timeout_ns / 10**9
LARGE = request_of(1, 2**19)


@contextmanager
def serving(peering: PeeringConfig = PEERING) -> Iterator[Called]:
    """A stream. In the end, nothing may be held and no timer left."""
    with manual_loop() as loop:
        made = Called(loop, peering)
        yield made
        made.leave()
        for request_id in list(made.core.open):
            made.core.end(request_id, Outcome.ABANDONED)
        assert made.held == (0, 0, 0)
        assert made.open == {}
        assert loop.timers == 0
        assert made.faults == []


@pytest.fixture
def called() -> Iterator[Called]:
    with serving() as made:
        yield made


def test_it_is_accepted_at_once_and_its_answer_crosses_unchanged(called: Called) -> None:
    request = request_of(1)
    called.begin(1, request)
    assert called.held == (1, len(request), 1)
    (accepted,) = called.sends()
    assert accepted.HasField("accepted")
    leg = called.core.legs[R1]
    leg.says(ROLE + token("x"))
    leg.says(LAST)
    leg.ends()
    called.core.end(R1)
    called.sends_all()
    assert called.data(1) == ROLE + token("x") + LAST
    assert called.last_words(1) == ["ended"]
    assert called.held == (0, 0, 0)


class TestWaysToEnd:
    """Each gives the place and the memory back, and says one last word."""

    def test_refused_by_the_core(self, called: Called) -> None:
        called.core.refuses = True
        called.begin(1, request_of(1))
        called.sends_all()
        assert (called.last_words(1), called.held) == (["refused"], (0, 0, 0))

    def test_a_request_of_this_id_is_here(self, called: Called) -> None:
        called.begin(1, request_of(1))
        called.begin(2, request_of(1))
        called.sends_all()
        assert (called.last_words(2), called.held[0]) == (["refused"], 1)

    @pytest.mark.parametrize("request_", [b"\xff\xff\xff", request_of(1, deadline_ms=0), request_of(1, body=b"[]")])
    def test_malformed(self, called: Called, request_: bytes) -> None:
        called.begin(1, request_)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["refused"], (0, 0, 0))
        assert called.said[1][0].refused.detail.startswith("INVALID_ARGUMENT: ")

    def test_another_s_claim_ends_the_stream(self, called: Called) -> None:
        called.claim_fault = "you are ap-1"
        with pytest.raises(StreamFault, match="you are ap-1"):
            called.begin(1, request_of(1))

    def test_no_room(self, called: Called) -> None:
        for number in (1, 2, 3):
            called.begin(number, request_of(number))
        called.sends_all()
        assert (called.last_words(3), called.held[0]) == (["refused"], 2)

    @pytest.mark.parametrize("begun", [0, 5000], ids=["nothing", "a part"])
    def test_not_whole_in_time(self, called: Called, begun: int) -> None:
        called.hears(pb.OriginFrame(forward=1, request_bytes=len(LARGE), request=LARGE[:begun], credit=1024))
        assert called.held == (1, len(LARGE), 1)
        (credit,) = called.sends()
        assert credit.credit == len(LARGE) - 2**18
        called.loop.pass_time(ACCEPT_S + 1)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["refused"], (0, 0, 0))
        rest = LARGE[begun : 2**18], LARGE[max(begun, 2**18) :]
        called.hears(*(pb.OriginFrame(forward=1, request=each) for each in rest))
        assert (called.open, called.ignored) == ({}, 0)

    def test_cancelled_as_it_begins(self, called: Called) -> None:
        called.hears(pb.OriginFrame(forward=1, request_bytes=len(LARGE), credit=1024, cancel=True))
        assert called.loop.timers == 0
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))

    def test_cancelled_before_its_request_is_whole(self, called: Called) -> None:
        called.hears(pb.OriginFrame(forward=1, request_bytes=len(LARGE), request=LARGE[:5000], credit=1000))
        called.hears(pb.OriginFrame(forward=1, cancel=True))
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))

    @pytest.mark.parametrize("is_told", [True, False])
    def test_cancelled_when_it_is_refused_before_its_request_is_whole(self, called: Called, is_told: bool) -> None:
        for number in (1, 2):
            called.begin(number, request_of(number))
        called.hears(pb.OriginFrame(forward=3, request_bytes=len(LARGE), request=LARGE[:5000], credit=1000))
        if is_told:
            called.sends_all()
        called.hears(pb.OriginFrame(forward=3, cancel=True))
        called.sends_all()
        assert called.last_words(3) == ["refused"], "its origin waits for one last word"

    def test_cancelled_while_it_waits_for_a_leg(self, called: Called) -> None:
        called.core.starts = False
        called.begin(1, request_of(1))
        called.hears(pb.OriginFrame(forward=1, cancel=True))
        assert called.core.abandoned == [R1]
        assert called.held[0] == 1, "until the core has let go of it"
        called.core.end(R1, Outcome.ABANDONED)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))

    def test_cancelled_in_the_middle(self, called: Called) -> None:
        called.begin(1, request_of(1))
        called.core.legs[R1].says(token("x"))
        called.hears(pb.OriginFrame(forward=1, cancel=True))
        assert called.core.legs[R1].is_over
        assert called.core.legs_ended[R1] == 1
        called.core.end(R1, Outcome.ABANDONED)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))

    def test_cancelled_after_its_end_while_the_answer_waits_for_credit(self, called: Called) -> None:
        called.begin(1, request_of(1), credit=1)
        leg = called.core.legs[R1]
        leg.says(PIECE + LAST)
        leg.ends()
        called.core.end(R1)
        called.sends_all()
        assert (called.last_words(1), called.held[0]) == ([], 1)
        called.hears(pb.OriginFrame(forward=1, cancel=True))
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))
        assert called.core.abandoned == [], "its client has its answer"

    def test_failed_at_its_engine(self, called: Called) -> None:
        called.begin(1, request_of(1))
        called.core.legs[R1].fails()
        called.core.end(R1, Outcome.FAILED_BEFORE_FIRST_BYTE)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["ended"], (0, 0, 0))


class TestSlowOrigins:
    def test_one_pauses_its_engine_and_resumes_it_as_it_reads(self, called: Called) -> None:
        called.begin(1, request_of(1), credit=1)
        leg = called.core.legs[R1]
        while not leg.is_paused:
            leg.says(PIECE)
        assert 5 * len(PIECE) < _UNREAD_BYTES_MAX < 8 * len(PIECE)
        called.sends_all()
        assert leg.is_paused, "what had credit is not enough"
        called.hears(pb.OriginFrame(forward=1, credit=30_000))
        called.sends_all()
        assert not leg.is_paused
        while not leg.is_paused:
            leg.says(PIECE)
        assert leg.pauses == 2
        called.hears(pb.OriginFrame(forward=1, credit=2**20))
        called.sends_all()
        leg.says(LAST)
        leg.ends()
        called.core.end(R1)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["ended"], (0, 0, 0))

    def test_one_that_reads_a_little_each_time_is_never_given_up(self, called: Called) -> None:
        called.begin(1, request_of(1), credit=1)
        leg = called.core.legs[R1]
        for _ in range(10):
            while not leg.is_paused:
                leg.says(PIECE)
            called.loop.pass_time(DEADLINE_S)
            called.hears(pb.OriginFrame(forward=1, credit=2 * len(PIECE)))
            called.sends_all()
            assert not leg.is_paused
        assert called.core.abandoned == []

    def test_one_that_never_reads_is_given_up_after_the_deadline_and_a_grace(self, called: Called) -> None:
        called.begin(1, request_of(1), credit=0)
        leg = called.core.legs[R1]
        while not leg.is_paused:
            leg.says(PIECE)
        called.loop.pass_time(DEADLINE_S + _UNREAD_GRACE_S - 1)
        assert not leg.is_over
        called.loop.pass_time(2)
        assert (leg.is_over, called.core.abandoned) == (True, [R1])
        called.core.end(R1, Outcome.ABANDONED)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))

    def test_so_is_one_that_never_reads_the_rest_of_a_whole_answer(self, called: Called) -> None:
        called.begin(1, request_of(1), credit=0)
        leg = called.core.legs[R1]
        leg.says(PIECE + LAST)
        leg.ends()
        called.core.end(R1)
        called.loop.pass_time(DEADLINE_S + _UNREAD_GRACE_S - 1)
        assert called.held[0] == 1
        called.loop.pass_time(2)
        called.sends_all()
        assert (called.last_words(1), called.held) == (["last"], (0, 0, 0))

    def test_one_that_reads_the_rest_in_time_has_it(self, called: Called) -> None:
        called.begin(1, request_of(1), credit=1)
        leg = called.core.legs[R1]
        leg.says(PIECE + LAST)
        leg.ends()
        called.core.end(R1)
        called.loop.pass_time(DEADLINE_S)
        called.hears(pb.OriginFrame(forward=1, credit=2**20))
        called.sends_all()
        assert called.data(1) == PIECE + LAST
        assert (called.last_words(1), called.held) == (["ended"], (0, 0, 0))


class TestStream:
    def test_an_origin_that_leaves_has_left_all_its_requests(self, called: Called) -> None:
        called.begin(1, request_of(1))
        called.hears(pb.OriginFrame(forward=2, request_bytes=len(LARGE), request=LARGE[:5000]))
        called.leave()
        assert called.core.legs[R1].is_over
        assert called.core.abandoned == [R1]
        assert called.held == (1, len(request_of(1)), 1)

    def test_more_of_a_request_than_was_announced_breaks_it(self, called: Called) -> None:
        called.hears(pb.OriginFrame(forward=1, request_bytes=10, request=b"12345"))
        with pytest.raises(WireError, match="than was announced"):
            called.hears(pb.OriginFrame(forward=1, request=b"678901"))

    def test_the_answer_that_is_kept_for_resuming_counts_and_is_given_back(self) -> None:
        request = request_of(1)
        most = len(request) + 100
        with serving(PeeringConfig(forwards_held_max_bytes=most, forwards_held_peer_max_bytes=most)) as called:
            called.begin(1, request)
            forward = called.open[1]
            assert forward._held is not None
            assert forward._held.keep(100)
            assert not forward._held.keep(1)
            assert called.held == (1, most, 1)
            called.hears(pb.OriginFrame(forward=1, cancel=True))
            called.core.end(R1, Outcome.ABANDONED)
            assert called.held == (0, 0, 0)


@pytest.mark.parametrize("how", ["ended", "refused", "cancelled", "unread"])
def test_a_forward_that_is_over_is_in_no_cycle(how: str) -> None:
    def run() -> Called:
        with manual_loop() as loop:
            called = Called(loop, PEERING)
            called.core.refuses = how == "refused"
            called.begin(1, request_of(1), credit=0 if how == "unread" else 2**20)
            if how != "refused":
                leg = called.core.legs.pop(R1)
                leg.says(PIECE + LAST)
                leg.ends()
                if how == "cancelled":
                    called.hears(pb.OriginFrame(forward=1, cancel=True))
                called.core.end(R1)
                if how == "unread":
                    loop.pass_time(DEADLINE_S + _UNREAD_GRACE_S + 1)
            called.sends_all()
            assert called.held == (0, 0, 0)
            called.core.open.clear()
            return called

    assert left_in_cycles(run, ServedForward, ProxiedRequest) == []


def test_refused_forwards_whose_requests_never_come_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called_module, "_REFUSED_MAX", 3)
    with serving(PeeringConfig(message_max_bytes=2**20)) as called:
        for number in range(1, 4):
            called.hears(pb.OriginFrame(forward=number, request_bytes=2**21, request=bytes(1000)))
        assert len(called.open) == 3
        assert called.stream._fault is None
        called.hears(pb.OriginFrame(forward=4, request_bytes=2**21, request=bytes(1000)))
        assert called.stream._fault is not None
        assert "left unfinished" in str(called.stream._fault)


def test_last_words_that_the_origin_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called_module, "_UNSENT_MAX", 3)
    with serving() as called:
        called.begin(1, request_of(1))
        called.core.refuses = True
        for number in range(2, 5):
            called.begin(number, request_of(number))
        assert called.held[0] == 1, "the one that runs has words to say, too, but does not count"
        with pytest.raises(StreamFault, match="unread") as raised:
            called.begin(5, request_of(5))
        assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_origin_that_reads_is_refused_as_often_as_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called_module, "_UNSENT_MAX", 3)
    with serving() as called:
        called.core.refuses = True
        for number in range(1, 10):
            called.begin(number, request_of(number))
            called.sends_all()
            assert called.last_words(number) == ["refused"]


def test_a_stream_that_closes_does_not_wait_for_requests_that_it_refused() -> None:
    with serving(PeeringConfig(message_max_bytes=2**20)) as called:
        called.hears(pb.OriginFrame(forward=1, request_bytes=2**21, request=bytes(1000)))
        called.stream.close()
        assert called.stream._ending.is_set()
