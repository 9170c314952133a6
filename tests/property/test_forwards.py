"""Any order of frames, core orders and engine words leaves nothing of a forward behind where it is served.

Its place and its memory are given back once, and its origin hears one last word at most.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import Outcome, RequestId
from gateway.peers.exchange.serving_stream import _UNREAD_GRACE_S
from protos.mesh.v1 import peer_pb2 as pb
from tests.support.called_forwards import DEADLINE_S, LAST, PIECE, Called, EngineLeg, request_of
from tests.support.manual_loop import manual_loop
from tests.support.nightly import examples

PEERING = PeeringConfig(forwards_max=3, forwards_held_max_bytes=700_000, forwards_held_peer_max_bytes=600_000)
OUTCOMES = st.sampled_from(
    (Outcome.COMPLETED, Outcome.FAILED_BEFORE_FIRST_BYTE, Outcome.EXPIRED_RUNNING, Outcome.ABANDONED)
)

SIZES = st.sampled_from((0, 300_000, 500_000))


class Forwards(RuleBasedStateMachine):
    """One stream, on which an origin begins forwards of which some find no room."""

    def __init__(self) -> None:
        super().__init__()
        self._entered = manual_loop()
        self.loop = self._entered.__enter__()
        self.called = Called(self.loop, PEERING)
        self.count = 0
        self.rest: dict[int, bytes] = {}
        """Request of each forward that has not gone out yet."""
        self.cancelled: set[int] = set()

    @initialize(starts=st.booleans())
    def chooses(self, starts: bool) -> None:
        self.called.core.starts = starts

    # The origin

    @rule(size=SIZES, credit=st.sampled_from((0, 1, 50_000, 2**20)), refuses=st.booleans(), again=st.booleans())
    def begins(self, size: int, credit: int, refuses: bool, again: bool) -> None:
        self.count += 1
        self.called.core.refuses = refuses
        request = request_of(1 if again else self.count, size)
        first, self.rest[self.count] = request[:200_000], request[200_000:]
        self.called.hears(pb.OriginFrame(forward=self.count, request_bytes=len(request), request=first, credit=credit))

    @rule(raw=st.sampled_from((b"\xff\xff", b"\xfa\x3e\x04evil")))
    def begins_what_cannot_be_read(self, raw: bytes) -> None:
        self.count += 1
        self.called.begin(self.count, raw)

    @precondition(lambda self: any(self.rest.values()))
    @rule(data=st.data(), is_whole=st.booleans())
    def sends_more_of_a_request(self, data: st.DataObject, is_whole: bool) -> None:
        """Within the credit that it has: the rest, once credit for it has come or was never needed."""
        number = data.draw(st.sampled_from([each for each, rest in self.rest.items() if rest]))
        if not any(frame.credit for frame in self.called.said.get(number, ())):
            return
        size = len(self.rest[number]) if is_whole else 50_000
        piece, self.rest[number] = self.rest[number][:size], self.rest[number][size:]
        self.called.hears(pb.OriginFrame(forward=number, request=piece))

    @precondition(lambda self: self.count)
    @rule(data=st.data(), credit=st.sampled_from((1, 70_000, 2**20)))
    def gives_credit(self, data: st.DataObject, credit: int) -> None:
        number = data.draw(st.integers(1, self.count))
        self.called.hears(pb.OriginFrame(forward=number, credit=credit))

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.count))
        self.rest[number] = b""
        self.cancelled.add(number)
        self.called.hears(pb.OriginFrame(forward=number, cancel=True))

    @rule()
    def takes_a_message(self) -> None:
        self.called.sends()

    # The core

    @precondition(lambda self: self.called.core.open)
    @rule(data=st.data(), outcome=OUTCOMES)
    def ends_a_request(self, data: st.DataObject, outcome: Outcome) -> None:
        self.called.core.end(self._one_open(data), outcome)

    @precondition(lambda self: self.called.core.open)
    @rule(data=st.data())
    def starts_a_leg(self, data: st.DataObject) -> None:
        core = self.called.core
        request_id = self._one_open(data)
        if request_id not in core.legs or core.legs[request_id].is_over:
            core.start(request_id)
            core.turn()

    def _one_open(self, data: st.DataObject) -> RequestId:
        return data.draw(st.sampled_from(sorted(self.called.core.open)))

    # The engines

    @property
    def running(self) -> list[EngineLeg]:
        return [leg for _, leg in sorted(self.called.core.legs.items()) if not leg.is_over]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pieces=st.integers(1, 10), how=st.sampled_from(("goes on", "ends", "fails", "breaks off")))
    def answers(self, data: st.DataObject, pieces: int, how: str) -> None:
        leg = data.draw(st.sampled_from(self.running))
        for _ in range(pieces):
            if not leg.is_over and not leg.is_paused:
                leg.says(PIECE)
        if how == "ends" and not leg.is_over:
            leg.says(LAST)
        if how in ("ends", "breaks off") and not leg.is_over:
            leg.ends()
        elif how == "fails" and not leg.is_over:
            leg.fails()
        self.called.core.turn()

    # Time

    @rule(seconds=st.sampled_from((0.5, PEERING.accept_timeout_ns / 10**9, DEADLINE_S + _UNREAD_GRACE_S)))
    def time_passes(self, seconds: float) -> None:
        self.called.loop.pass_time(seconds)
        self.called.core.turn()

    # Invariants

    @invariant()
    def what_is_held_is_what_its_forwards_hold(self) -> None:
        called = self.called
        held = [forward._held for forward in called.open.values() if forward._held is not None]
        assert called.held[0] == len(held)
        assert called.held[1] == sum(each._place._size for each in held)
        assert len(called.core.open) <= len(held)

    @invariant()
    def each_has_one_last_word_at_most(self) -> None:
        for number in self.called.said:
            assert len(self.called.last_words(number)) <= 1

    @invariant()
    def nothing_is_an_error_of_ours(self) -> None:
        assert self.called.faults == []

    def teardown(self) -> None:
        """The core ends all that is open; each forward then ends as its origin takes all or leaves."""
        called = self.called
        try:
            for request_id in sorted(called.core.open):
                called.core.end(request_id, Outcome.EXPIRED_RUNNING)
            for number in sorted(called.open):
                called.hears(pb.OriginFrame(forward=number, credit=2**30))
            called.sends_all()
            for number in sorted(called.open):  # requests that never came whole
                assert self.rest[number]
                called.hears(pb.OriginFrame(forward=number, cancel=True))
            called.sends_all()
            assert (called.held, called.open) == ((0, 0, 0), {})
            for number in range(1, self.count + 1):
                assert len(called.last_words(number)) == 1
            called.leave()
            assert called.held == (0, 0, 0)
            assert self.loop.timers == 0
            for request_id, attempts in called.core.attempts.items():
                assert called.core.legs_ended[request_id] == attempts
            self.what_is_held_is_what_its_forwards_hold()
        finally:
            self._entered.__exit__(None, None, None)


class StreamsThatBreak(Forwards):
    """The same, but the origin leaves in the middle of it all."""

    def teardown(self) -> None:
        called = self.called
        try:
            called.leave()
            for request_id in sorted(called.core.open):
                assert called.core.abandoned.count(request_id) >= 1
                called.core.end(request_id, Outcome.ABANDONED)
            called.leave()
            assert (called.held, called.open, self.loop.timers) == ((0, 0, 0), {}, 0)
            assert called.faults == []
        finally:
            self._entered.__exit__(None, None, None)


TestForwards = Forwards.TestCase
TestForwards.settings = settings(max_examples=examples(few=20, night=200), stateful_step_count=40)
TestStreamsThatBreak = StreamsThatBreak.TestCase
TestStreamsThatBreak.settings = settings(max_examples=examples(few=15, night=150), stateful_step_count=30)
