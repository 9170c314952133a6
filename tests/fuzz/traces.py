"""Trace headers of callers, and the headers that an engine gets in their place."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.request.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    TRACESTATE_LENGTH_MAX,
    RequestTrace,
    SpanName,
    fresh_span_id,
    named_in,
)

TRACE_WORDS = (b"00-", b"ff-", b"cc-", b"-01", b"-00", b"\n", b",", b"=", b"@", b" ", b"\t", b"a=1", b"0" * 16, b"\xff")
_GOOD = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def traces() -> Iterator[bytes]:
    """A traceparent, followed on the next line by a tracestate."""
    yield _GOOD
    yield _GOOD + b"\na=1,b=2"
    yield _GOOD[:-2] + b"00\n" + b",".join(b"k%d=%b" % (number, b"x" * 60) for number in range(12))
    yield b"cc" + _GOOD[2:] + b"-more\nlong=" + b"x" * 300 + b",short@vendor=1"
    yield _GOOD + b"," + _GOOD
    yield b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01\na=1"
    yield b"\na=1"


def read_trace(data: bytes) -> None:
    """Check that a caller's trace is passed on to the engine with the same id, flags and tracestate."""
    traceparent, _, tracestate = data.decode("latin-1").partition("\n")
    named = named_in(((TRACEPARENT, traceparent), (TRACESTATE, tracestate)))
    if named is None:
        return
    assert len(named.tracestate) <= TRACESTATE_LENGTH_MAX
    own = SpanName(named.trace_id, fresh_span_id(), named.is_sampled, named.is_random, named.tracestate)
    told = named_in(RequestTrace(own, named, None, "/").headers_for(1, 1, ((TRACEPARENT, traceparent),)))
    assert told is not None
    assert (told.trace_id, told.flags, told.tracestate) == (named.trace_id, named.flags, named.tracestate)
    assert int(told.trace_id, 16) > 0 < int(told.span_id, 16)
