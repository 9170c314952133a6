"""Trace context of requests, by W3C's Trace Context (https://www.w3.org/TR/trace-context-2/), and the headers that pass
it on to engines and peers. It knows no exporter and decides nothing.

Baggage is not supported: clients write it, and no edge of this gateway passes it on.
"""

from __future__ import annotations

import re
from os import urandom

from msgspec import Struct

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_OURS = frozenset({TRACEPARENT, TRACESTATE})
TRACESTATE_LENGTH_MAX = 512
"""Length of a tracestate that every participant has to pass on; a longer one loses members as section 3.3.1.5 says."""

_SAMPLED, _RANDOM = 0x01, 0x02
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_KEY = r"[a-z0-9][a-z0-9_\-*/]{0,255}(?:@[a-z0-9][a-z0-9_\-*/]{0,255})?"
_MEMBER = re.compile(rf"(?P<key>{_KEY})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_MEMBERS_MAX = 32
_LONG_MEMBER = 128
"""Length above which members are dropped first."""
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_Headers = tuple[tuple[str, str], ...]


class SpanName(Struct, frozen=True):
    """Span that a traceparent names. Ids are hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool = False
    is_random: bool = False
    """True if the trace id is declared to be random."""
    tracestate: str = ""

    @property
    def flags(self) -> int:
        return _SAMPLED * self.is_sampled | _RANDOM * self.is_random

    @property
    def traceparent(self) -> str:
        return self.traceparent_below(self.span_id)

    def traceparent_below(self, span_id: str) -> str:
        """Traceparent of another span of the same trace, with the same sampling decision."""
        return f"00-{self.trace_id}-{span_id}-{self.flags:02x}"


class RequestTrace:
    """One request at this gateway as a part of a trace. A span id is assigned to each leg before it is opened; spans of
    engines and peers are its children."""

    __slots__ = ("_legs", "cause", "own", "parent", "path")

    def __init__(self, own: SpanName, parent: SpanName | None, cause: SpanName | None, path: str) -> None:
        """Set up the trace. `own`: the request's span here. `cause`: the caller's span where it is not trusted: it
        becomes a link, not the parent."""
        self.own = own
        self.parent = parent
        self.cause = cause
        self.path = path
        self._legs: dict[tuple[int, int], str] = {}

    def leg_id(self, attempt: int, leg: int) -> str:
        """Span id of a leg; a leg that was never sent gets a fresh one."""
        return self._legs.get((attempt, leg)) or fresh_span_id()

    def headers_for(self, attempt: int, leg: int, headers: _Headers) -> _Headers:
        """Headers of a leg, with the traceparent of its own span. The sampling flag is the decision at the request's
        arrival, since its end is not known yet."""
        own = self.own
        span_id = self._legs[attempt, leg] = fresh_span_id()
        told = [pair for pair in headers if pair[0] not in _OURS]
        told.append((TRACEPARENT, own.traceparent_below(span_id)))
        if own.tracestate:
            told.append((TRACESTATE, own.tracestate))
        return tuple(told)


def named_in(headers: _Headers) -> SpanName | None:
    """Span that the headers name; None if there is no valid traceparent, in which case tracestate is void too."""
    written = state = ""
    for name, text in headers:
        if name == TRACEPARENT:
            written = text
        elif name == TRACESTATE:
            state = text
    match = _TRACEPARENT.fullmatch(written.strip(" \t")) if written else None
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["rest"] is not None):
        return None
    trace_id, span_id, flags = match["trace"], match["span"], int(match["flags"], 16)
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return SpanName(trace_id, span_id, bool(flags & _SAMPLED), bool(flags & _RANDOM), kept_state(state))


def kept_state(written: str) -> str:
    """Tracestate to pass on: empty for a malformed one, shortened for a long one."""
    if not written:
        return ""
    members = [member.strip(" \t") for member in written.split(",")]
    members = [member for member in members if member]
    keys = [match["key"] for member in members if (match := _MEMBER.fullmatch(member)) is not None]
    if len(keys) < len(members) or len(set(keys)) < len(keys) or len(keys) > _MEMBERS_MAX:
        return ""
    while sum(map(len, members)) + len(members) - 1 > TRACESTATE_LENGTH_MAX:
        long = [index for index, member in enumerate(members) if len(member) > _LONG_MEMBER]
        members.pop(long[-1] if long else -1)
    return ",".join(members)


def fresh_trace_id() -> str:
    return _fresh(_TRACE_BYTES)


def fresh_span_id() -> str:
    return _fresh(_SPAN_BYTES)


def _fresh(count: int) -> str:
    """Draw an id; ids of zeros are invalid."""
    while not (drawn := urandom(count).hex()).strip("0"):
        pass
    return drawn
