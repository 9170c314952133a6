"""Client's side of a request: which leg may write, what was sent, and what is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import LegResult, Outcome, ReplicaId
from gateway.features.resume.continuation import keep_answer
from gateway.request.answer import AnswerSettings, ClientAnswer
from gateway.request.answer_events import TokenUsage
from gateway.request.engine_api import CHAT_PATH, EMBEDDINGS_PATH
from gateway.request.kept_answer import Hold
from gateway.request.legs import LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from tests.support.core import US, profile
from tests.support.orders import end, start
from tests.support.proxied import JSON, RecordingSink, Scene

FIRST, SECOND = start(), start(leg=2)


def head(replica: str = "a") -> LegHead:
    return LegHead(200, JSON, RanAt(ReplicaId(replica), US))


def answer(
    sink: RecordingSink | None = None, *, asked_model: str = "", path: str = CHAT_PATH, hold: Hold | None = None
) -> ClientAnswer:
    port = Scene().port
    return ClientAnswer(
        port,
        AnswerSettings(),
        sink or RecordingSink(),
        outbound=OutboundRequest(profile("r1"), path, (), b"{}", asked_model=asked_model),
        summary=RequestSummary(),
        arrived_ns=port.now_ns(),
        hold=hold,
        keep_answer=keep_answer,
    )


class TestSpeaking:
    def test_one_leg_writes_at_a_time(self) -> None:
        one = answer()
        one.begin(FIRST, head())
        with pytest.raises(LegFailure, match="leg 1 is answering already"):
            one.begin(SECOND, head("b"))

    def test_the_next_one_goes_on_behind_it_without_another_head(self) -> None:
        sink = RecordingSink()
        one = answer(sink)
        one.begin(FIRST, head())
        one.leave(FIRST)
        one.begin(SECOND, head("b"))
        assert sink.head == head()
        assert one.summary.ran_at == head("b").ran_at
        assert sink.breaches == []

    def test_a_leg_that_has_not_spoken_silences_no_other_by_its_end(self) -> None:
        one = answer()
        one.begin(FIRST, head())
        one.leave(SECOND)
        with pytest.raises(LegFailure):
            one.begin(SECOND, head("b"))

    def test_what_has_begun_cannot_be_replaced(self) -> None:
        one = answer()
        one.expect_nothing_sent("status 400")
        one.begin(FIRST, head())
        with pytest.raises(LegFailure, match="status 400, after the answer had begun") as raised:
            one.expect_nothing_sent("status 400")
        assert raised.value.result is LegResult.FAILED


class TestNames:
    EVENT = b'data: {"model":"llama","choices":[]}\n\n'

    def test_an_answer_has_the_name_that_the_client_used(self) -> None:
        sink = RecordingSink()
        one = answer(sink, asked_model="mine")
        one.begin(FIRST, head())
        assert one.put(self.EVENT)
        assert sink.body == self.EVENT.replace(b"llama", b"mine")
        assert one.named_as_asked(b'{"model":"llama"}') == b'{"model":"mine"}'

    def test_without_another_name_the_bytes_are_the_engines(self) -> None:
        sink = RecordingSink()
        one = answer(sink)
        one.begin(FIRST, head())
        assert one.put(self.EVENT)
        assert sink.body == self.EVENT
        body = b'{"model":"llama"}'
        assert one.named_as_asked(body) is body

    def test_a_full_buffer_is_reported_under_either_name(self) -> None:
        for name in ("", "mine"):
            sink = RecordingSink()
            sink.is_narrow = True
            one = answer(sink, asked_model=name)
            one.begin(FIRST, head())
            assert not one.put(self.EVENT)


class TestKeeping:
    HOLD: Hold = staticmethod(lambda _: True)

    @pytest.mark.parametrize(
        ("order", "path", "hold"),
        [
            (FIRST, CHAT_PATH, HOLD),
            (replace(FIRST, keeps_answer=True), CHAT_PATH, None),
            (replace(FIRST, keeps_answer=True), EMBEDDINGS_PATH, HOLD),
        ],
    )
    def test_an_answer_that_cannot_be_resumed_is_not_kept(
        self, order: StartLeg, path: str, hold: Callable[[int], bool] | None
    ) -> None:
        assert answer(path=path, hold=hold).kept_for(order) is None

    def test_one_that_can_is_kept_in_one_transcript_for_all_legs(self) -> None:
        one = answer(hold=self.HOLD)
        kept = one.kept_for(replace(FIRST, keeps_answer=True))
        assert kept is not None
        assert one.kept_for(SECOND) is kept


class TestCounting:
    def test_legs_add_up_their_output_and_the_first_counts_the_prompt(self) -> None:
        one = answer()
        one.note_usage(TokenUsage(22, 6, 16))
        one.note_usage(TokenUsage(28, 4, 20))
        one.note_usage(TokenUsage())
        summary = one.summary
        assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (22, 16, 10)

    def test_the_first_token_of_all_legs_counts(self) -> None:
        one = answer()
        one.note_first_token()
        first_ns = one.summary.first_token_ns
        one.port.now += 5  # type: ignore[attr-defined]
        one.note_first_token()
        assert one.summary.first_token_ns == first_ns == 0


LATE: list[Callable[[RecordingSink], object]] = [
    lambda sink: sink.write(b""),
    lambda sink: sink.start(head()),
    lambda sink: sink.accepted(),
    lambda sink: sink.end(end(), RequestSummary()),
]


@pytest.mark.parametrize("word", LATE)
def test_a_recording_sink_notes_what_comes_after_the_end(word: Callable[[RecordingSink], object]) -> None:
    """The sink of these tests checks its contract, so that the tests of requests need not."""
    sink = RecordingSink()
    sink.end(end(Outcome.ABANDONED), RequestSummary())
    assert sink.breaches == []
    word(sink)
    assert "called after the end" in sink.breaches
