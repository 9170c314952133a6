from __future__ import annotations

import re

import pytest

from gateway.request.trace_context import RequestTrace, SpanName, fresh_span_id, fresh_trace_id, kept_state, named_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def named(traceparent: str, *, state: str = "") -> SpanName | None:
    return named_in((("traceparent", traceparent), *([("tracestate", state)] if state else [])))


class TestReading:
    def test_a_traceparent_names_a_span(self) -> None:
        assert named(GOOD) == SpanName(TRACE, SPAN, is_sampled=True)
        assert named(GOOD[:-2] + "00") == SpanName(TRACE, SPAN)
        assert named(GOOD[:-2] + "03", state="a=1") == SpanName(TRACE, SPAN, True, True, "a=1")
        assert named_in((("accept", "*/*"),)) is None

    @pytest.mark.parametrize("known", ["cc-" + GOOD[3:], f"cc-{TRACE}-{SPAN}-01-more", f" {GOOD}\t"])
    def test_of_a_later_version_as_much_is_read_as_is_known(self, known: str) -> None:
        assert named(known) == SpanName(TRACE, SPAN, is_sampled=True)

    @pytest.mark.parametrize(
        "broken",
        [
            "00-1-2-01",
            GOOD.upper(),
            "ff-" + GOOD[3:],
            GOOD + "-00",
            GOOD[:-1],
            GOOD + "0",
            f"cc-{TRACE}-{SPAN}-011",
            f"00-{'0' * 32}-{SPAN}-01",
            f"00-{TRACE}-{'0' * 16}-01",
            f"00-{TRACE}-{SPAN}-0g",
            f"{GOOD},{GOOD}",
            "caf\xe9" + GOOD,
            "0" * 100_000,
            "",
        ],
    )
    def test_what_cannot_be_believed_names_nothing_and_neither_does_its_tracestate(self, broken: str) -> None:
        assert named(broken, state="a=1") is None

    @pytest.mark.parametrize(
        ("written", "kept"),
        [
            ("", ""),
            ("a=1,b=2", "a=1,b=2"),
            ("a=1 , ,\tt1@vendor/x=2", "a=1,t1@vendor/x=2"),
            ("a=1,a=2", ""),
            ("A=1", ""),
            ("a=", ""),
            ("a", ""),
            ("a=b=c", ""),
            ("a=1,b=caf\xe9", ""),
            (",".join(f"k{i}=1" for i in range(33)), ""),
        ],
    )
    def test_a_tracestate_goes_on_unless_it_is_malformed(self, written: str, kept: str) -> None:
        assert kept_state(written) == kept

    def test_of_a_long_tracestate_long_members_are_left_out_first_and_then_the_last(self) -> None:
        short = [f"k{i}={'x' * 65}" for i in range(6)]
        long = f"long={'x' * 200}"
        assert kept_state(",".join([short[0], long, *short[1:]])) == ",".join(short)
        many = [f"k{i}={'x' * 65}" for i in range(9)]
        kept = kept_state(",".join(many))
        assert kept == ",".join(many[:7])
        assert len(kept) <= 512


class TestTelling:
    def test_a_leg_goes_out_under_its_own_name_in_place_of_whatever_came(self) -> None:
        own = SpanName(TRACE, SPAN, is_sampled=True, tracestate="a=1")
        trace = RequestTrace(own, None, None, "/v1/chat/completions")
        came = (("accept", "*/*"), ("traceparent", "theirs"), ("tracestate", "theirs=1"), ("x-request-id", "r1"))
        first, second = (dict(trace.headers_for(attempt, 1, came)) for attempt in (1, 2))
        assert list(first) == ["accept", "x-request-id", "traceparent", "tracestate"]
        assert first["traceparent"] == f"00-{TRACE}-{trace.leg_id(1, 1)}-01"
        assert second["traceparent"] == f"00-{TRACE}-{trace.leg_id(2, 1)}-01"
        assert first["tracestate"] == "a=1"
        assert len({trace.leg_id(1, 1), trace.leg_id(2, 1), SPAN}) == 3

    def test_what_goes_out_is_read_again_as_what_it_is(self) -> None:
        own = SpanName(TRACE, SPAN, is_sampled=False, is_random=True, tracestate="a=1")
        headers = RequestTrace(own, None, None, "/").headers_for(1, 1, ())
        read = named_in(headers)
        assert read is not None
        assert (read.trace_id, read.is_sampled, read.is_random, read.tracestate) == (TRACE, False, True, "a=1")

    def test_a_leg_that_never_went_out_has_an_id_as_well(self) -> None:
        trace = RequestTrace(SpanName(TRACE, SPAN), None, None, "/")
        assert re.fullmatch("[0-9a-f]{16}", trace.leg_id(7, 1))

    def test_ids_are_fresh(self) -> None:
        assert len({fresh_trace_id() for _ in range(100)}) == len({fresh_span_id() for _ in range(100)}) == 100
