"""Which trace a request belongs to, by W3C's Trace Context (https://www.w3.org/TR/trace-context-2/), and what goes out
about it to engines and to other gateways. Headers in, headers out: it knows no exporter, and nothing is decided by it.

Baggage has no place here: it is what callers wrote, and no edge of this gateway passes it on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from os import urandom

from gateway.core.value import value

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
TRACESTATE_LENGTH_MAX = 512
"""What everybody has to pass on; of a longer one, members are left out as section 3.3.1.5 says."""

_SAMPLED, _RANDOM = 0x01, 0x02
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_KEY = r"[a-z0-9][a-z0-9_\-*/]{0,255}(?:@[a-z0-9][a-z0-9_\-*/]{0,255})?"
_MEMBER = re.compile(rf"(?P<key>{_KEY})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_MEMBERS_MAX = 32
_LONG_MEMBER = 128
"""Members longer than this are left out first."""
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_Headers = tuple[tuple[str, str], ...]


@value
class SpanName:
    """A span that somebody names in a traceparent. Ids are in hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool = False
    is_random: bool = False
    """Whoever made the trace id says that it was drawn by chance."""
    tracestate: str = ""

    @property
    def flags(self) -> int:
        return _SAMPLED * self.is_sampled | _RANDOM * self.is_random

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


class RequestTrace:
    """One request at this gateway, as a part of a trace. Its owner has it name each leg before that is opened: what an
    engine or a peer makes of it hangs below."""

    __slots__ = ("_legs", "cause", "own", "parent", "path")

    def __init__(self, own: SpanName, parent: SpanName | None, cause: SpanName | None, path: str) -> None:
        """`own`: the span of the request here. `cause`: what the caller named, where that is not believed: linked to,
        and no parent."""
        self.own = own
        self.parent = parent
        self.cause = cause
        self.path = path
        self._legs: dict[tuple[int, int], str] = {}

    def leg_id(self, attempt: int, leg: int) -> str:
        """One that never was sent anywhere has an id as well."""
        return self._legs.get((attempt, leg)) or fresh_span_id()

    def headers_for(self, attempt: int, leg: int, headers: _Headers) -> _Headers:
        """What a leg is sent with, in the name of its own span. Whether it is sampled is told as it was decided at the
        beginning: what the end will say, nobody knows yet."""
        span_id = self._legs[attempt, leg] = fresh_span_id()
        named = replace(self.own, span_id=span_id)
        kept = tuple(pair for pair in headers if pair[0] not in (TRACEPARENT, TRACESTATE))
        state = ((TRACESTATE, named.tracestate),) if named.tracestate else ()
        return (*kept, (TRACEPARENT, named.traceparent), *state)


def named_in(headers: _Headers) -> SpanName | None:
    """None where there is no traceparent, or none that can be believed to be one: then its tracestate means nothing
    either."""
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
    """What goes on of a tracestate: nothing of one that is malformed, and of a long one as much as may."""
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
    """An id of zeros is none."""
    while not any(drawn := urandom(count)):
        pass
    return drawn.hex()
