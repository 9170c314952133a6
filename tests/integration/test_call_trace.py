"""Python calls of one local request, in a gateway with real sockets: they may become fewer, and no more."""

from __future__ import annotations

from tests.support.call_trace import traced

CALLS_MAX = {"core": 239, "request": 154, "edges": 137, "recorders": 41, "shared": 40}
"""Calls by part of the gateway, a little above the count when this was written."""
FILES_MAX = 78


_TRACES_MAX = 5
"""Requests traced until one takes the short way: bytes that arrive in two pieces instead of one cost further calls."""


async def test_a_local_request_takes_the_short_way() -> None:
    for _ in range(_TRACES_MAX):
        trace = await traced("local")
        figures = trace.figures()
        too_many = {part: figures[part] for part, most in CALLS_MAX.items() if figures[part] > most}
        if not too_many:
            break
    assert too_many == {}
    assert figures["files"] <= FILES_MAX
    queues = {"gateway/core/kernel/queues.py", "gateway/core/features/sharing/fair_queue.py"}
    queued = [name for file, name in trace.calls if file in queues]
    assert queued == [], "a request that can be placed at once is never queued"
