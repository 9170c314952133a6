"""History of a disaggregated pool's ended requests as it travels through a controller: a gateway that takes the pool
over predicts output lengths from it at once.

It holds what one gateway has recorded itself, and no other gateway's requests, so that the policies of two regions
decide where it may be: that of the pool's home, and that of the gateway that recorded it. It holds lengths alone,
without text, names and keys of prompts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import Struct

from gateway.core.vocabulary import GatewayId

ROWS_MAX = 4_000
"""Most requests in one history, the newest."""
LENGTH_MAX = 1 << 24
"""Bound above any real length of a prompt or an answer, in tokens."""
COUNT_MAX = 1 << 48
"""Bound above the number of requests that any gateway records."""
MESSAGE_BYTES_MIN = 64 * 1024
"""Smallest bound on messages of a stream that histories of any size fit into."""
_NUMBER = "I"
"""Type of the numbers in columns, as of `struct`: unsigned, of 4 bytes, little-endian."""
_NUMBER_BYTES = struct.calcsize(f"<{_NUMBER}")
_HIGHEST = {"ended_meanwhile": ROWS_MAX, "prompt_tokens": LENGTH_MAX, "output_tokens": LENGTH_MAX}
"""Columns with the highest number that each may hold."""


class PoolHistory(Struct, frozen=True):
    """Newest ended requests of one pool that one gateway has recorded, in columns of equal length, in order of
    ending."""

    home: GatewayId
    pool: str
    """Name of the pool at its home."""
    recorded_by: GatewayId
    """Gateway that served the pool when the requests ended, and sent the history."""
    added: int
    """Requests ever recorded by that gateway, with those not in the columns."""
    prompt_tokens: bytes = b""
    output_tokens: bytes = b""
    ended_meanwhile: bytes = b""
    """Number of other requests that ended between a request's admission and its end, at most ROWS_MAX."""

    def __len__(self) -> int:
        return len(self.output_tokens) // _NUMBER_BYTES

    def rows(self) -> list[tuple[int, int, int]]:
        """Requests as (prompt tokens, output tokens, ended meanwhile), of a history without faults."""
        columns = (self.prompt_tokens, self.output_tokens, self.ended_meanwhile)
        return list(zip(*map(_numbers, columns), strict=True))


def packed(numbers: Sequence[int]) -> bytes:
    """Column of a history with these numbers."""
    return struct.pack(f"<{len(numbers)}{_NUMBER}", *numbers)


def history_fault(history: PoolHistory) -> str:
    """Return the first fault of a history, with pool and column; empty if there is none."""
    fault = _fault(history)
    return f"history of pool {history.pool} of {history.home}: {fault}" if fault else ""


def _fault(history: PoolHistory) -> str:
    if not 0 <= history.added <= COUNT_MAX:
        return f"added: {history.added} is not between 0 and {COUNT_MAX}"
    rows = len(history)
    if rows > (most := min(ROWS_MAX, history.added)):
        return f"output_tokens: its {rows} requests are more than {most}"
    for column, highest in _HIGHEST.items():
        found: bytes = getattr(history, column)
        if len(found) != (wanted := rows * _NUMBER_BYTES):
            return f"{column}: it has {len(found)} bytes, and {rows} requests take {wanted}"
        if (largest := max(_numbers(found), default=0)) > highest:
            return f"{column}: {largest} is above {highest}"
    return ""


def _numbers(column: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(column) // _NUMBER_BYTES}{_NUMBER}", column)
