"""Python calls of one local request, in a gateway with real sockets: they may become fewer, and no more."""

from __future__ import annotations

from tests.support.call_trace import Trace, traced

CALLS_MAX = {"core": 236, "request": 153, "edges": 137, "recorders": 37, "shared": 40}
"""Calls by part of the gateway, a little above the count when this was written."""
FILES_MAX = 77


async def _compared() -> tuple[Trace, dict[str, int]]:
    """Trace a request. Return its trace, and the calls of each part that makes too many."""
    trace = await traced("local")
    figures = trace.figures()
    return trace, {part: figures[part] for part, most in CALLS_MAX.items() if figures[part] > most}


_TRACES_MAX = 5
"""Requests traced until one takes the short way: bytes that arrive in two pieces instead of one cost further calls."""


async def test_a_local_request_takes_the_short_way() -> None:
    trace, too_many = await _compared()
    seen = 1
    while too_many and seen < _TRACES_MAX:
        trace, too_many = await _compared()
        seen += 1
    assert too_many == {}
    figures = trace.figures()
    assert figures["files"] <= FILES_MAX
    queues = {"gateway/core/kernel/queues.py", "gateway/core/features/sharing/fair_queue.py"}
    queued = [name for file, name in trace.calls if file in queues]
    assert queued == [], "a request that can be placed at once is never queued"
