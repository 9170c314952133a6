"""Answer of a request, as its client gets it from one leg or several, one after the other. Nothing is sent until it is
known to be worth sending.

It knows what has been sent, and opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.block_sizes import BLOCKS_MAX
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import FirstToken, ResponseStored
from gateway.core.response_key import response_key
from gateway.core.vocabulary import LegResult
from gateway.request.answer_events import TokenUsage
from gateway.request.kept_answer import Hold, KeepAnswer, KeptAnswer
from gateway.request.legs import LegFailure, LegHead, OutboundRequest, RequestSummary, Sink
from gateway.request.model_names import Renamer
from gateway.request.port import Port


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    held_bytes_max: int = 1 << 20
    """Bytes that may be held back before the first byte goes out: a stream's beginning, or a whole answer."""
    event_bytes_max: int = 1 << 20
    trailer_grace_s: float = 1.0
    """Time after `[DONE]` in which the engine may end its response, so that the connection can be used again."""
    engine_stall_s: float | None = 120.0
    """Time without data after which a stream that has begun is taken to have failed; None: it may take any time."""
    prefix_blocks_max: int = BLOCKS_MAX
    """Largest number of prefix hashes over prompt and answer, for the target that appends to a broken answer."""


class ClientAnswer:
    """Client's side of one request: where its answer goes, and how much of it has been sent."""

    __slots__ = (
        "_arrived_ns",
        "_hold",
        "_keep_answer",
        "_renamed",
        "_speaker",
        "kept",
        "outbound",
        "port",
        "put",
        "settings",
        "sink",
        "summary",
    )

    def __init__(
        self,
        port: Port,
        settings: AnswerSettings,
        sink: Sink,
        *,
        outbound: OutboundRequest,
        summary: RequestSummary,
        arrived_ns: int,
        hold: Hold | None,
        keep_answer: KeepAnswer | None = None,
    ) -> None:
        """Set up the answer. `hold`: budget in which a kept answer is counted. None: nothing is kept of it; nor without
        `keep_answer`."""
        self._keep_answer = keep_answer
        self.port = port
        self.settings = settings
        self.sink = sink
        self.outbound = outbound
        self.summary = summary
        self._arrived_ns = arrived_ns
        self._hold = hold
        self.kept: KeptAnswer | None = None
        """Segments of an answer that another leg may have to append to."""
        self._speaker: StartLeg | None = None
        """Leg whose answer the client is receiving or has received."""
        self._renamed = None if not outbound.asked_model else Renamer(outbound.profile.model, outbound.asked_model)
        self.put: Callable[[bytes], bool] = sink.write if self._renamed is None else self._put_renamed
        """Sends whole events of an answer, as `Sink.write` does."""

    def named_as_asked(self, body: bytes) -> bytes:
        """Return an answer in one piece with the model name that the client used. Called before its length is set."""
        return body if self._renamed is None else self._renamed(body)

    def _put_renamed(self, data: bytes) -> bool:
        assert self._renamed is not None, "it has another name"
        return self.sink.write(self._renamed(data))

    def begin(self, order: StartLeg, head: LegHead) -> None:
        """Let this leg alone write to the client. Raises LegFailure while another one does."""
        if self._speaker is not None:
            raise LegFailure(LegResult.FAILED, f"leg {self._speaker.leg} is answering already")
        self._speaker = order
        summary = self.summary
        summary.ran_at = head.ran_at
        if not summary.started:
            summary.started = True
            self.sink.start(head)

    def leave(self, order: StartLeg) -> None:
        """Note the end of a leg, after which another one may continue the answer."""
        if self._speaker is order:
            self._speaker = None

    def expect_nothing_sent(self, what: str) -> None:
        """Raise LegFailure if status and headers have gone out, from any leg: further legs continue that answer."""
        if self.summary.started:
            raise LegFailure(LegResult.FAILED, f"{what}, after the answer had begun")

    def kept_for(self, order: StartLeg) -> KeptAnswer | None:
        """Kept answer that this leg's events are added to; None if nothing can be appended to it."""
        if self.kept is None and order.keeps_answer and self._hold is not None and self._keep_answer is not None:
            self.kept = self._keep_answer(
                self.outbound, self._hold, self.put, prefix_blocks_max=self.settings.prefix_blocks_max
            )
        return self.kept

    def stored(self, order: StartLeg, response_id: str | None) -> None:
        """Report a stored response to the core, before the client sees its id and may refer to it."""
        if response_id is not None and self.outbound.stores_response:
            key = response_key(self.outbound.profile.tenant, response_id)
            self.port.post(ResponseStored(order.request_id, order.attempt, order.leg, key))

    def first_token(self, order: StartLeg) -> None:
        """Report the first token, which the client has been sent."""
        self.note_first_token()
        self.port.post(FirstToken(order.request_id, order.attempt, order.leg))

    def note_first_token(self) -> None:
        """Note the time to first token. The core hears of an answer in one piece with its end only."""
        if self.summary.first_token_ns is None:
            self.summary.first_token_ns = self.port.now_ns() - self._arrived_ns

    def note_usage(self, usage: TokenUsage) -> None:
        """Note the usage of a leg that answered: prompt tokens of the first one, and output tokens summed up."""
        summary = self.summary
        if summary.prompt_tokens is None:
            summary.prompt_tokens, summary.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        if usage.output_tokens is not None:
            summary.output_tokens = (summary.output_tokens or 0) + usage.output_tokens
