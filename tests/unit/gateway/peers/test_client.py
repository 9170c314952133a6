"""A leg at a peer without sockets, tasks or time of its own: what it tells its request, and what the peer hears."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    NeededIdentity,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
)
from gateway.peers.client import PeerLeg, PeerLegOpener
from gateway.peers.exchange.batches import UNASKED_BYTES_MAX
from gateway.peers.exchange.origin_stream import OriginForward, OriginStream
from gateway.request.answer_events import TokenUsage
from gateway.request.legs import STOPPED, LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.support.core import AP, EU, profile
from tests.support.cycles import left_in_cycles
from tests.support.legs import OpenLeg
from tests.support.manual_loop import ManualLoop, manual_loop
from tests.support.orders import forward_order

WINDOW = 1000
ACCEPT_S = 5.0
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU), attempt=1)
ACCEPTED, HEADED = answer_frames.accepted(), answer_frames.head(HEAD)
ONE, TWO = answer_frames.data(b"data: 1\n\n"), answer_frames.data(b"data: 2\n\n")
ENDED = answer_frames.ended(
    EndRequest(RequestId("r-1"), Outcome.COMPLETED, "", 1),
    RequestSummary(ran_at=HEAD.ran_at, prompt_tokens=3, output_tokens=2),
)
REFUSED = answer_frames.refused(RefusalReason.QUEUE_FULL, "10 wait")
ANSWER = (ACCEPTED, HEADED, ONE, TWO, ENDED)
LAST = pb.AnswerFrame(last=True)
ELSEWHERE = RanAt(ReplicaId("ap-a"), AP)
"""Place that the stamp of `forward_order` does not allow."""
NO_FAILURE = LegFailure(LegResult.FAILED, "the connection broke")


@dataclass
class Link:
    """Link of which the leg uses the stream."""

    carrier: OriginStream
    peering: PeeringConfig = field(default_factory=lambda: PeeringConfig(accept_timeout_ns=int(ACCEPT_S * 10**9)))
    turns: int = 0

    def turn_over(self) -> None:
        self.turns += 1


class Origin:
    """A leg on a stream of its own, whose messages a test takes and gives."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.ignored = 0
        self.stream = OriginStream(
            None,  # type: ignore[arg-type]  # the call is used by `run` alone
            Clock(),
            window_bytes=WINDOW,
            gap_ns=0,
            on_ignored=self._ignore,
            is_shortage=lambda _: False,
        )
        self.link = Link(self.stream)
        self.leg = OpenLeg()
        self.violations: list[tuple[str, str, RanAt]] = []

    def _ignore(self) -> None:
        self.ignored += 1

    def _violate(self, *violation: Any) -> None:
        self.violations.append(violation)

    def begin(self, request: bytes = b"request", identity: NeededIdentity | None = None) -> None:
        link: Any = self.link
        leg = PeerLeg(replace(forward_order(), identity=identity), link, self.leg, self._violate)
        self.leg.handle = leg
        leg.begin(request)

    def sent(self) -> list[pb.OriginFrame]:
        """Frames of the next message to the peer."""
        return list(pb.ExchangeRequest.FromString(self.stream._outbox.next_message()).frames)

    def hears(self, *frames: pb.AnswerFrame) -> None:
        """Take in one message of the peer, with these frames of the forward."""
        message = pb.ExchangeResponse(frames=frames)
        for frame in message.frames:
            frame.forward = frame.forward or 1
        self.stream._take_in(message.SerializeToString())

    def pause_at(self, name: str, occurrence: int = 1) -> None:
        """Pause the leg when it has told this for the given time."""

        def pause(told: str) -> None:
            if told == name and self.leg.told.count(name) == occurrence:
                self.leg.handle.pause()

        self.leg.on_told = pause


@pytest.fixture
def origin() -> Iterator[Origin]:
    with begun() as made:
        yield made


@contextmanager
def begun(request: bytes = b"request", identity: NeededIdentity | None = None) -> Iterator[Origin]:
    """A leg whose request has gone out. In the end, no timer may be left, and the leg has ended once at most."""
    with manual_loop() as loop:
        made = Origin(loop)
        made.begin(request, identity)
        made.sent()
        yield made
        made.leg.handle.stop()
        assert made.leg.ends == 1
        assert loop.timers == 0


def cut(joints: tuple[str, ...]) -> list[list[pb.AnswerFrame]]:
    """The answer's words, as frames in messages: each joint is between two words."""
    messages = [[pb.AnswerFrame()]]
    messages[-1][-1].MergeFrom(ANSWER[0])
    for joint, word in zip(joints, ANSWER[1:], strict=True):
        if joint == "message":
            messages.append([pb.AnswerFrame()])
        elif joint == "frame":
            messages[-1].append(pb.AnswerFrame())
        frame = messages[-1][-1]
        data = frame.data + word.data
        frame.MergeFrom(word)
        frame.data = data
    return messages


CUTS = list(product(("together", "frame", "message"), repeat=len(ANSWER) - 1))


class TestWords:
    @pytest.mark.parametrize("joints", CUTS, ids="-".join)
    def test_however_they_are_cut_they_mean_the_same(self, origin: Origin, joints: tuple[str, ...]) -> None:
        for message in cut(joints):
            origin.hears(*message)
        told = origin.leg.told
        assert [name for name in told if name != "data"] == ["accepted", "head", "end"]
        assert told[2] == "data"
        assert origin.leg.head == HEAD
        assert origin.leg.body == b"data: 1\n\ndata: 2\n\n"
        assert origin.leg.counted == TokenUsage(3, 2)
        assert (origin.stream.forwards, origin.ignored, origin.stream._patience.is_fresh(0)) == (0, 0, True)

    @pytest.mark.parametrize("joints", CUTS, ids="-".join)
    @pytest.mark.parametrize("name", ["accepted", "head", "data"])
    def test_a_leg_without_room_keeps_the_rest_in_order(
        self, origin: Origin, joints: tuple[str, ...], name: str
    ) -> None:
        origin.pause_at(name)
        for message in cut(joints):
            origin.hears(*message)
        assert origin.leg.told[-1] == name
        assert not origin.leg.ends
        origin.leg.handle.resume()
        assert [name for name in origin.leg.told if name != "data"] == ["accepted", "head", "end"]
        assert origin.leg.body == b"data: 1\n\ndata: 2\n\n"

    def test_one_that_has_room_again_at_once_gets_them_in_order_too(self, origin: Origin) -> None:
        def pause_and_resume(_: str) -> None:
            origin.leg.handle.pause()
            origin.leg.handle.resume()

        origin.leg.on_told = pause_and_resume
        origin.hears(*ANSWER)
        assert origin.leg.told == ["accepted", "head", "data", "data", "end"]
        assert origin.leg.body == b"data: 1\n\ndata: 2\n\n"

    def test_a_refusal_is_the_only_word(self, origin: Origin) -> None:
        origin.hears(REFUSED)
        assert origin.leg.told == ["failed"]
        assert origin.leg.failure == LegFailure(LegResult.REFUSED, "10 wait", RefusalReason.QUEUE_FULL)
        assert (origin.sent(), origin.stream.forwards) == ([], 0), "the peer has nothing left to let go of"

    @pytest.mark.parametrize("count", range(len(ANSWER)))
    def test_a_last_frame_after_any_of_them_ends_the_leg(self, origin: Origin, count: int) -> None:
        origin.hears(*ANSWER[:count], LAST)
        assert origin.leg.failure == LegFailure(LegResult.FAILED, "the peer closed the forward without a last word")
        assert origin.stream.forwards == 0

    @pytest.mark.parametrize("count,name", [(1, "accepted"), (2, "head"), (3, "data")])
    def test_a_receiver_s_error_in_a_word_is_no_fault_of_the_peer_or_the_stream(
        self, origin: Origin, count: int, name: str
    ) -> None:
        def stumble(told: str) -> None:
            if told == name:
                raise ZeroDivisionError("ours")

        origin.leg.on_told = stumble
        origin.hears(ACCEPTED, HEADED, ONE, TWO)
        assert origin.leg.told == [*["accepted", "head", "data"][:count], "fault"]
        assert origin.stream.broken is None
        assert isinstance(origin.leg.fault, ZeroDivisionError)
        assert [frame.cancel for frame in origin.sent()] == [True]


def ended(outcome: Outcome, detail: str = "", ran_at: RanAt | None = HEAD.ran_at) -> pb.AnswerFrame:
    return answer_frames.ended(EndRequest(RequestId("r-1"), outcome, detail, 1), RequestSummary(ran_at=ran_at))


class TestBadAnswers:
    @pytest.mark.parametrize(
        ("outcome", "refusal"),
        [
            (Outcome.REJECTED_UNKNOWN_MODEL, RefusalReason.UNKNOWN_MODEL),
            (Outcome.REJECTED_RESIDENCY_INGRESS, RefusalReason.RESIDENCY_NOT_ACCEPTED),
            (Outcome.REJECTED_RESIDENCY_PROCESSING, RefusalReason.RESIDENCY_STAMP),
            (Outcome.REJECTED_QUEUE_FULL, RefusalReason.QUEUE_FULL),
            (Outcome.REJECTED_DRAINING, RefusalReason.DRAINING),
            (Outcome.REJECTED_UNKNOWN_RESPONSE, RefusalReason.UNKNOWN_RESPONSE),
            (Outcome.EXPIRED_IN_QUEUE, RefusalReason.BUSY),
        ],
    )
    def test_a_change_of_mind_is_a_refusal(self, origin: Origin, outcome: Outcome, refusal: RefusalReason) -> None:
        origin.hears(ACCEPTED, ended(outcome, "why"))
        assert origin.leg.failure == LegFailure(LegResult.REFUSED, "why", refusal, notes={"resume": (0, 0)})

    @pytest.mark.parametrize(
        ("words", "detail"),
        [
            ((HEADED,), "first word was head"),
            ((pb.AnswerFrame(),), "first word was None"),
            ((ACCEPTED, ONE), "sent data before a head"),
            ((ACCEPTED, pb.AnswerFrame(head=pb.Head(status=7))), "7 is not a final HTTP status"),
            ((ACCEPTED, pb.AnswerFrame(head=pb.Head(status=204))), "204 has no body to be sent with"),
            ((ACCEPTED, pb.AnswerFrame(head=pb.Head(status=304))), "304 has no body to be sent with"),
            ((ACCEPTED, ended(Outcome.FAILED_BEFORE_FIRST_BYTE, "engine died")), "engine died"),
            ((ACCEPTED, ended(Outcome.COMPLETED)), "ended as completed"),
            ((pb.AnswerFrame(refused=pb.Refused(reason="")),), "RefusalReason is not an id"),
            ((ACCEPTED, HEADED, ONE, ended(Outcome.FAILED_MIDSTREAM, "engine died")), "engine died"),
            ((ACCEPTED, HEADED, ONE, ended(Outcome.EXPIRED_RUNNING)), "expired_running"),
            ((ACCEPTED, HEADED, ONE, HEADED), "sent head in the middle"),
            ((ACCEPTED, HEADED, ONE, pb.AnswerFrame(ended=pb.Ended(outcome="no word"))), "Outcome is not an id"),
        ],
    )
    def test_whatever_is_no_answer_is_a_failure(
        self, origin: Origin, words: tuple[pb.AnswerFrame, ...], detail: str
    ) -> None:
        origin.hears(*words)
        assert origin.leg.failure is not None
        assert origin.leg.failure.result is LegResult.FAILED
        assert detail in origin.leg.failure.detail

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ((answer_frames.head(replace(HEAD, ran_at=ELSEWHERE)), ONE), ["accepted", "failed"]),
            ((HEADED, ONE, ended(Outcome.COMPLETED, ran_at=ELSEWHERE)), ["accepted", "head", "data", "failed"]),
        ],
        ids=["head", "end"],
    )
    def test_an_answer_from_where_the_stamp_forbids_goes_no_further(
        self, origin: Origin, words: tuple[pb.AnswerFrame, ...], told: list[str]
    ) -> None:
        origin.hears(ACCEPTED, *words)
        assert origin.leg.told == told
        assert origin.leg.failure is not None
        assert origin.leg.failure.result is LegResult.FAILED
        assert AP.region in origin.leg.failure.detail
        assert origin.violations == [("eu-1", "r-1", ELSEWHERE)]


class TestOpening:
    OUTBOUND = OutboundRequest(profile("r-1"), "/v1/completions", (), b"{}")

    def opener(self, **peering: int) -> PeerLegOpener:
        link: Any = Link(None, PeeringConfig(**peering))  # type: ignore[arg-type]  # no leg gets that far
        return PeerLegOpener({GatewayId("eu-1"): link}, GatewayId("us-1"), Clock())

    def test_a_peer_that_was_just_dropped_has_not_failed(self) -> None:
        with pytest.raises(LegFailure, match="no connection to peer nobody") as caught:
            self.opener().open(forward_order(to="nobody"), self.OUTBOUND, OpenLeg())
        assert (caught.value.result, caught.value.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)

    def test_nor_has_one_whose_message_would_be_too_large(self) -> None:
        with pytest.raises(LegFailure, match="larger than max") as caught:
            self.opener(message_max_bytes=100).open(forward_order(), self.OUTBOUND, OpenLeg())
        assert (caught.value.result, caught.value.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)

    def test_what_is_no_wire_message_is_raised_as_it_is(self) -> None:
        with pytest.raises(AssertionError, match="the core gives every forward its hops"):
            self.opener().open(replace(forward_order(), hops=None), self.OUTBOUND, OpenLeg())


class TestIdentity:
    """The head of a bound forward's answer is checked before anything of it reaches the request."""

    STRICT = NeededIdentity("m@a", takes_unknown=False)

    @pytest.mark.parametrize("identity", [None, STRICT, NeededIdentity("m@a", takes_unknown=True)])
    def test_an_answer_of_the_needed_model_is_taken(self, identity: NeededIdentity | None) -> None:
        with begun(identity=identity) as origin:
            origin.hears(ACCEPTED, answer_frames.head(replace(HEAD, identity="m@a")), ONE, ENDED)
            assert origin.leg.told == ["accepted", "head", "data", "end"]

    @pytest.mark.parametrize("told", ["m@b", ""])
    def test_an_answer_of_another_model_reaches_no_client(self, told: str) -> None:
        with begun(identity=self.STRICT) as origin:
            origin.hears(ACCEPTED, answer_frames.head(replace(HEAD, identity=told)), ONE, ENDED)
            assert origin.leg.told == ["accepted", "failed"]
            assert origin.leg.failure is not None
            assert origin.leg.failure.result is LegResult.FAILED
            assert "another model" in origin.leg.failure.detail

    @pytest.mark.parametrize("status", [400, 307])
    def test_an_error_about_the_request_is_the_client_s_whatever_the_model(self, status: int) -> None:
        refusal = EndRequest(RequestId("r-1"), Outcome.CLIENT_ERROR, "", 1)
        last = answer_frames.ended(refusal, RequestSummary(ran_at=HEAD.ran_at, prompt_tokens=0, output_tokens=0))
        with begun(identity=self.STRICT) as origin:
            origin.hears(ACCEPTED, answer_frames.head(replace(HEAD, status=status)), ONE, last)
            assert origin.leg.told == ["accepted", "head", "data", "end"]
            assert origin.leg.head.status == status


class TestCredit:
    def test_none_is_given_for_what_waits_here_and_all_of_it_once_it_was_taken(self, origin: Origin) -> None:
        origin.pause_at("head")
        origin.hears(ACCEPTED, HEADED)
        origin.hears(answer_frames.data(bytes(WINDOW // 2)))
        origin.hears(answer_frames.data(bytes(WINDOW // 2)))
        assert origin.sent() == []
        origin.leg.on_told = lambda _: None
        origin.leg.handle.resume()
        assert [frame.credit for frame in origin.sent()] == [WINDOW]
        assert len(origin.leg.body) == WINDOW

    def test_half_a_window_is_given_at_a_time(self, origin: Origin) -> None:
        origin.hears(ACCEPTED, HEADED, answer_frames.data(bytes(WINDOW // 2 - 1)))
        assert origin.sent() == []
        origin.hears(answer_frames.data(b"x"))
        assert [frame.credit for frame in origin.sent()] == [WINDOW // 2]

    def test_a_leg_that_pauses_at_each_piece_takes_one_each_time(self, origin: Origin) -> None:
        origin.hears(ACCEPTED, HEADED)
        origin.leg.on_told = lambda _: origin.leg.handle.pause()
        origin.hears(*[answer_frames.data(b"%d" % number) for number in range(5)])
        for count in range(1, 5):
            assert len(origin.leg.pieces) == count
            origin.leg.handle.resume()
        assert origin.leg.body == b"01234"


class TestStop:
    @pytest.mark.parametrize("count", range(len(ANSWER)))
    def test_after_each_word_it_is_one_end_and_a_cancel_until_the_peer_lets_go(
        self, origin: Origin, count: int
    ) -> None:
        if count:
            origin.hears(*ANSWER[:count])
        origin.leg.handle.stop()
        assert origin.leg.failure == STOPPED
        assert [(frame.forward, frame.cancel, frame.request) for frame in origin.sent()] == [(1, True, b"")]
        told = list(origin.leg.told)
        origin.leg.handle.stop()
        origin.leg.handle.pause()
        origin.leg.handle.resume()
        for frame in ANSWER[count:-1]:
            origin.hears(frame)
        assert (origin.stream.forwards, origin.sent()) == (1, [])
        origin.hears(LAST)
        assert (origin.leg.told, origin.ignored, origin.stream.forwards) == (told, 0, 0)

    @pytest.mark.parametrize("name", ["accepted", "head", "data"])
    @pytest.mark.parametrize("has_ended", [True, False])
    def test_with_words_that_wait_here_they_are_dropped(self, origin: Origin, name: str, has_ended: bool) -> None:
        origin.pause_at(name)
        origin.hears(*(ANSWER if has_ended else ANSWER[:-1]))
        told = list(origin.leg.told)
        origin.leg.handle.stop()
        origin.leg.handle.resume()
        assert origin.leg.told == [*told, "failed"]
        assert origin.leg.failure == STOPPED
        assert [frame.cancel for frame in origin.sent()] == ([] if has_ended else [True])

    @pytest.mark.parametrize("name", ["accepted", "head", "data"])
    def test_in_the_middle_of_a_message_nothing_of_it_follows(self, origin: Origin, name: str) -> None:
        origin.leg.on_told = lambda told: origin.leg.handle.stop() if told == name else None
        origin.hears(*ANSWER)
        assert origin.leg.told[-2:] == [name, "failed"]
        assert origin.leg.failure == STOPPED

    @pytest.mark.parametrize("words", [ANSWER, (REFUSED,)], ids=["ended", "refused"])
    def test_after_its_end_nothing_is_told_or_sent(self, origin: Origin, words: tuple[pb.AnswerFrame, ...]) -> None:
        origin.hears(*words)
        told = list(origin.leg.told)
        origin.sent()
        origin.leg.handle.stop()
        assert (origin.leg.told, origin.sent()) == (told, [])

    def test_before_anything_went_out_the_peer_never_hears_of_it(self) -> None:
        with manual_loop() as loop:
            origin = Origin(loop)
            origin.begin()
            origin.leg.handle.stop()
            assert origin.leg.failure == STOPPED
            assert (origin.sent(), origin.stream.forwards, loop.timers) == ([], 0, 0)


class TestRequest:
    def test_a_refusal_before_all_of_it_was_sent_stops_the_rest(self) -> None:
        with begun(bytes(2**20)) as origin:
            while origin.sent():
                pass  # up to the window that needs no credit
            origin.hears(REFUSED)
            assert origin.leg.told == ["failed"]
            assert [(frame.cancel, frame.request) for frame in origin.sent()] == [(True, b"")]
            assert origin.stream.forwards == 0

    def test_a_stop_before_all_of_it_was_sent_stops_the_rest(self) -> None:
        with begun(bytes(2**20)) as origin:
            origin.leg.handle.stop()
            origin.hears(pb.AnswerFrame(credit=2**20))
            assert [(frame.cancel, frame.request) for frame in origin.sent()] == [(True, b"")]

    def test_a_last_frame_before_all_of_it_was_sent_stops_the_rest(self) -> None:
        with begun(bytes(2**20)) as origin:
            origin.hears(LAST)
            assert origin.leg.told == ["failed"]
            assert [frame.request for frame in origin.sent() if frame.request] == []

    def test_it_goes_as_far_as_credit_allows(self) -> None:
        with begun(bytes(2**20)) as origin:
            sent = 128 * 1024
            while frames := origin.sent():
                sent += sum(len(frame.request) for frame in frames)
            assert sent == UNASKED_BYTES_MAX
            origin.hears(pb.AnswerFrame(credit=2**20 - UNASKED_BYTES_MAX))
            while frames := origin.sent():
                sent += sum(len(frame.request) for frame in frames)
            assert sent == 2**20


class TestTime:
    def test_a_peer_that_neither_accepts_nor_refuses_in_time_is_given_up(self, origin: Origin) -> None:
        origin.loop.pass_time(ACCEPT_S - 0.1)
        assert origin.leg.told == []
        origin.loop.pass_time(0.2)
        assert origin.leg.failure == LegFailure(LegResult.FAILED, "the peer neither accepted nor refused in time")
        assert origin.link.turns == 1, "the core hears of it at once"
        assert [frame.cancel for frame in origin.sent()] == [True]
        origin.hears(*ANSWER)
        assert origin.leg.told == ["failed"]
        assert (origin.stream.forwards, origin.ignored) == (0, 0)

    def test_an_acceptance_in_time_is_enough(self, origin: Origin) -> None:
        origin.hears(ACCEPTED)
        origin.loop.pass_time(100 * ACCEPT_S)
        assert origin.leg.told == ["accepted"]
        origin.hears(*ANSWER[1:])
        assert origin.leg.told[-1] == "end"

    @pytest.mark.parametrize("word", [ACCEPTED, REFUSED])
    def test_so_is_one_that_the_leg_had_no_room_for(self, origin: Origin, word: pb.AnswerFrame) -> None:
        """A pause may last: it is never the peer's fault."""
        origin.hears(ACCEPTED)
        origin.leg.handle.pause()
        origin.hears(HEADED)
        origin.loop.pass_time(100 * ACCEPT_S)
        assert origin.leg.told == ["accepted"]


class TestBreak:
    def test_it_is_told_after_what_waits_here(self, origin: Origin) -> None:
        origin.pause_at("head")
        origin.hears(ACCEPTED, HEADED, ONE, TWO)
        origin.stream._break(NO_FAILURE)
        assert origin.leg.told == ["accepted", "head"]
        origin.leg.handle.resume()
        assert origin.leg.told == ["accepted", "head", "data", "data", "failed"]
        assert origin.leg.failure == NO_FAILURE
        assert origin.sent() == []

    def test_an_answer_that_had_come_whole_is_whole(self, origin: Origin) -> None:
        origin.pause_at("head")
        origin.hears(*ANSWER)
        origin.stream._break(NO_FAILURE)
        origin.leg.handle.resume()
        assert origin.leg.told == ["accepted", "head", "data", "data", "end"]

    def test_a_leg_that_pauses_again_hears_of_it_last(self, origin: Origin) -> None:
        """A failure needs no room: it is told with the last piece."""
        origin.leg.on_told = lambda name: origin.leg.handle.pause() if name == "data" else None
        origin.hears(ACCEPTED, HEADED, ONE, TWO)
        origin.stream._break(NO_FAILURE)
        assert origin.leg.told == ["accepted", "head", "data"]
        origin.leg.handle.resume()
        assert origin.leg.told == ["accepted", "head", "data", "data", "failed"]
        assert origin.leg.failure == NO_FAILURE

    def test_a_leg_that_is_stopped_before_it_has_heard_of_it_is_stopped(self, origin: Origin) -> None:
        origin.pause_at("head")
        origin.hears(ACCEPTED, HEADED, ONE)
        origin.stream._break(NO_FAILURE)
        origin.leg.handle.stop()
        assert origin.leg.failure == STOPPED
        assert origin.sent() == []

    def test_after_a_stop_nobody_hears_of_it(self, origin: Origin) -> None:
        origin.hears(ACCEPTED)
        origin.leg.handle.stop()
        origin.stream._break(NO_FAILURE)
        assert origin.leg.told == ["accepted", "failed"]
        assert origin.leg.failure == STOPPED

    @pytest.mark.parametrize("count", range(len(ANSWER)))
    def test_without_a_pause_it_is_told_at_once(self, origin: Origin, count: int) -> None:
        if count:
            origin.hears(*ANSWER[:count])
        origin.stream._break(NO_FAILURE)
        assert origin.leg.failure == NO_FAILURE


@pytest.mark.parametrize("how", ["ended", "refused", "stopped", "broken", "late"])
def test_a_leg_that_is_over_is_in_no_cycle(how: str) -> None:
    def run() -> Origin:
        with manual_loop() as loop:
            origin = Origin(loop)
            origin.begin()
            origin.sent()
            match how:
                case "ended":
                    origin.hears(*ANSWER)
                case "refused":
                    origin.hears(REFUSED)
                case "stopped":
                    origin.leg.handle.stop()
                case "broken":
                    origin.stream._break(NO_FAILURE)
                case _:
                    loop.pass_time(ACCEPT_S)
            if how in ("stopped", "late"):
                origin.hears(LAST)
            assert origin.leg.ends == 1
            del origin.leg.handle  # a request drops it with the leg's end
            return origin

    assert left_in_cycles(run, PeerLeg, OriginForward) == []
