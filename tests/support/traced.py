"""Finished requests, as input for spans."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.kernel.residency import LoggingRule
from gateway.core.vocabulary import GatewayId, RequestProfile, Target
from gateway.request.engine_api import CHAT_PATH
from gateway.request.legs import RequestSummary
from gateway.request.trace_context import RequestTrace, SpanName
from gateway.tracing.sampling import KeptBecause
from gateway.tracing.spans import FinishedRequest, Server, Span, spans_of
from mesh.values import Address
from tests.support.core import Desk, desk
from tests.support.followed import Followed

TRACE, OWN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "1111111111111111", "2222222222222222"
WALL_NS = 1_900_000_000_000_000_000
ENGINE = Address("10.0.0.7", 8000)


def trace(*, parent: bool = True, cause: bool = False, path: str = CHAT_PATH, state: str = "") -> RequestTrace:
    named = SpanName(TRACE, PARENT, is_sampled=True)
    own = SpanName(TRACE, OWN, is_sampled=True, tracestate=state)
    return RequestTrace(own, named if parent else None, named if cause else None, path)


def server_of(target: Target) -> Server | None:
    return Server(ENGINE.host, ENGINE.port, "vllm") if target.id.startswith("r") else None


class Traced(Followed):
    """Core at the gateway us-1; each finished request is kept."""

    def __init__(self, core: Desk | None = None, *, logging: LoggingRule | None = None, is_known: bool = True) -> None:
        super().__init__(core or desk())
        self.kept: list[FinishedRequest] = []
        self._logging = logging or LoggingRule()
        self._is_known = is_known
        self.finished.hand_to(self._take)
        self.watch()

    def _take(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        now_ns, made = self.desk.now_ns, summary.trace
        assert made is not None
        offset_ns = WALL_NS - now_ns
        self.kept.append(
            FinishedRequest(
                profile, end, summary, record, made, KeptBecause.HEAD, now_ns, offset_ns, self._logging, self._is_known
            )
        )

    def spans(self) -> list[Span]:
        (finished,) = self.kept
        return spans_of(finished, GatewayId("us-1"), server_of)


def one(spans: Iterable[Span], name: str) -> Span:
    (found,) = (each for each in spans if each.name == name)
    return found
