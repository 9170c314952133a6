from __future__ import annotations

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from gateway.config.tracing import TailConfig, TracingConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import LegResult, Outcome, RequestId
from gateway.request.legs import Headers, OutboundRequest, RequestSummary
from gateway.tracing.sampling import HeadSampler, KeptBecause, TailSampler
from tests.support.core import EU, MS, SECOND, desk, peer_spec, profile
from tests.support.followed import Followed

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
COMPLETED = EndRequest(RequestId("r1"), Outcome.COMPLETED, "", 1)
SLOW = RequestSummary(first_token_ns=2 * SECOND)
QUICK = RequestSummary(first_token_ns=MS)
TAIL = TailConfig(slow_first_token_ns=SECOND, forwarded=True)


def outbound(headers: Headers = (), *, is_traced: bool = False) -> OutboundRequest:
    return OutboundRequest(profile("r1"), "/v1/chat/completions", headers, b"", is_traced=is_traced)


def asked(flags: str, *, is_traced: bool = False) -> OutboundRequest:
    headers = (("traceparent", f"00-{TRACE}-{SPAN}-{flags}"), ("tracestate", "a=1"))
    return outbound(headers, is_traced=is_traced)


class TestHead:
    @pytest.mark.parametrize(("flags", "is_sampled"), [("01", True), ("00", False)])
    def test_a_trace_that_is_joined_goes_on_as_its_caller_decided(self, flags: str, is_sampled: bool) -> None:
        trace = HeadSampler(TracingConfig(sampled_share=1.0 - is_sampled)).begin(asked(flags))
        assert (trace.own.trace_id, trace.own.is_sampled, trace.own.tracestate) == (TRACE, is_sampled, "a=1")
        assert trace.parent is not None
        assert trace.parent.span_id == SPAN != trace.own.span_id
        assert trace.cause is None

    def test_a_client_that_is_not_trusted_is_linked_to(self) -> None:
        trace = HeadSampler(TracingConfig(trust_client=False, sampled_share=0.0)).begin(asked("01"))
        assert trace.own.trace_id != TRACE
        assert (trace.parent, trace.own.is_sampled, trace.own.tracestate) == (None, False, "")
        assert trace.cause is not None
        assert (trace.cause.trace_id, trace.cause.span_id) == (TRACE, SPAN)

    def test_a_gateway_is_trusted_all_the_same(self) -> None:
        trace = HeadSampler(TracingConfig(trust_client=False)).begin(asked("01", is_traced=True))
        assert (trace.own.trace_id, trace.own.is_sampled, trace.cause) == (TRACE, True, None)

    @pytest.mark.parametrize(("share", "sampled"), [(0.0, 0), (1.0, 400)])
    def test_none_or_all(self, share: float, sampled: int) -> None:
        head = HeadSampler(TracingConfig(sampled_share=share))
        assert sum(head.begin(outbound()).own.is_sampled for _ in range(400)) == sampled

    def test_a_share_is_decided_by_the_trace_s_id_as_elsewhere(self) -> None:
        head, theirs = HeadSampler(TracingConfig(sampled_share=0.3)), TraceIdRatioBased(0.3)
        seen = set()
        for _ in range(200):
            own = head.begin(outbound()).own
            decided = theirs.should_sample(None, int(own.trace_id, 16), "").decision is Decision.RECORD_AND_SAMPLE
            assert decided is own.is_sampled
            seen.add(decided)
        assert seen == {True, False}


def failed_over() -> Followed:
    """A request that failed at one replica, and was retried at another."""
    followed = Followed(desk())
    followed.watch()
    followed.ask("r1")
    followed.end("r1", LegResult.FAILED)
    return followed


def forwarded() -> Followed:
    followed = Followed(desk(peers=[peer_spec("eu-1", EU)]))
    followed.watch()
    followed.forward("r1")
    return followed


class TestTail:
    @pytest.mark.parametrize(
        ("outcome", "summary", "why"),
        [
            (Outcome.COMPLETED, QUICK, None),
            (Outcome.COMPLETED, SLOW, KeptBecause.SLOW),
            (Outcome.ABANDONED, RequestSummary(duration_ns=2 * SECOND), KeptBecause.SLOW),
            (Outcome.ABANDONED, RequestSummary(duration_ns=MS), None),
            (Outcome.FAILED_MIDSTREAM, QUICK, KeptBecause.FAILED),
            (Outcome.EXPIRED_IN_QUEUE, QUICK, KeptBecause.FAILED),
            (Outcome.REJECTED_UNKNOWN_MODEL, QUICK, None),
            (Outcome.CLIENT_ERROR, QUICK, None),
            (Outcome.COMPLETED, replace(SLOW, segments=1), KeptBecause.RESUMED),
        ],
    )
    def test_by_how_it_went(self, outcome: Outcome, summary: RequestSummary, why: KeptBecause | None) -> None:
        end = replace(COMPLETED, outcome=outcome)
        assert TailSampler(TAIL).why_kept(end, summary, None, 0) is why

    def test_one_that_somebody_failed_on_its_way(self) -> None:
        record = failed_over().requests[RequestId("r1")]
        assert TailSampler(TAIL).why_kept(COMPLETED, QUICK, record, 0) is KeptBecause.FAILED
        assert TailSampler(replace(TAIL, failed=False)).why_kept(COMPLETED, QUICK, record, 0) is None

    def test_one_that_came_as_a_forward(self) -> None:
        record = forwarded().requests[RequestId("r1")]
        assert TailSampler(TAIL).why_kept(COMPLETED, QUICK, record, 0) is KeptBecause.FORWARDED
        assert TailSampler(replace(TAIL, forwarded=False)).why_kept(COMPLETED, QUICK, record, 0) is None

    def test_where_everything_is_slow_no_more_are_kept_in_a_second_than_may(self) -> None:
        tail = TailSampler(replace(TAIL, kept_per_s=3))
        in_one = [tail.why_kept(COMPLETED, SLOW, None, 5 * SECOND + number) for number in range(10)]
        assert in_one == [KeptBecause.SLOW] * 3 + [None] * 7
        assert tail.why_kept(COMPLETED, SLOW, None, 6 * SECOND) is KeptBecause.SLOW
