"""History of a disaggregated pool's ended requests as it travels through a controller: a gateway that takes the pool
over predicts output lengths from it at once.

It holds lengths and keys of prompts, without text and names. The secret that keys are made with never travels: to a
gateway with another secret, all prompts are unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import Struct

from gateway.core.vocabulary import GatewayId

ROWS_MAX = 4_000
"""Most requests in one history, the newest."""
KEY_ID_LENGTH_MAX = 64
PROMPT_KEY_MAX = (1 << 63) - 1
LENGTH_MAX = 1 << 24
"""Bound above any real length of a prompt or an answer, in tokens."""
COUNT_MAX = (1 << 63) - 1
_UNKNOWN_PROMPT = 0
_WIDE, _NARROW = "Q", "I"
_TYPES = {"prompt_keys": _WIDE, "prompt_tokens": _NARROW, "output_tokens": _NARROW, "after": _WIDE}
"""Columns with the type of their numbers, as of `struct`: unsigned, of 8 or 4 bytes, little-endian."""


class PoolHistory(Struct, frozen=True):
    """Newest ended requests of one pool, in columns of equal length, in order of ending."""

    home: GatewayId
    pool: str
    """Name of the pool at its home."""
    recorded_by: GatewayId
    """Gateway that serves the pool and sent the history."""
    key_id: str
    """Name of the secret that the keys of prompts are made with; it does not give the secret away."""
    added: int
    """Requests ever recorded, with those not in the columns."""
    first_away: int
    """Number of requests that the home had recorded when another gateway took the pool over; `added` in a history that
    the home sends."""
    prompt_keys: bytes = b""
    """Hashes of prompts; 0: unknown."""
    prompt_tokens: bytes = b""
    output_tokens: bytes = b""
    after: bytes = b""
    """Number of requests ever recorded at each request's admission."""

    def __len__(self) -> int:
        return len(self.after) // struct.calcsize(f"<{_WIDE}")

    def rows(self, key_id: str) -> list[tuple[int, int, int, int]]:
        """Requests as (prompt key, prompt tokens, output tokens, after), of a history without faults, for a gateway
        whose secret has the name `key_id`: under another secret, no prompt is known."""
        keys = _numbers(self.prompt_keys, _WIDE)
        if key_id != self.key_id:
            keys = [_UNKNOWN_PROMPT] * len(keys)
        prompts, outputs = _numbers(self.prompt_tokens, _NARROW), _numbers(self.output_tokens, _NARROW)
        return list(zip(keys, prompts, outputs, _numbers(self.after, _WIDE), strict=True))


def packed(numbers: Sequence[int], column: str) -> bytes:
    """Column of a history with these numbers."""
    return struct.pack(f"<{len(numbers)}{_TYPES[column]}", *numbers)


def history_fault(history: PoolHistory) -> str:
    """Return the first fault of a history, with pool and column; empty if there is none."""
    fault = _fault(history)
    return f"history of pool {history.pool} of {history.home}: {fault}" if fault else ""


def _fault(history: PoolHistory) -> str:
    if len(history.key_id) > KEY_ID_LENGTH_MAX or not history.key_id.isalnum():
        return "key_id: it is empty, too long or not plain"
    if not 0 <= history.first_away <= history.added <= COUNT_MAX:
        return f"first_away: {history.first_away} is not between 0 and `added`, {history.added}"
    rows = len(history)
    if rows > min(ROWS_MAX, history.added):
        return f"after: its {rows} requests are more than {min(ROWS_MAX, history.added)}"
    highest = {"prompt_keys": PROMPT_KEY_MAX, "after": history.added}
    for column, code in _TYPES.items():
        found: bytes = getattr(history, column)
        if len(found) != (wanted := struct.calcsize(f"<{rows}{code}")):
            return f"{column}: it has {len(found)} bytes, and {rows} requests take {wanted}"
        if (most := max(_numbers(found, code), default=0)) > highest.get(column, LENGTH_MAX):
            return f"{column}: {most} is above {highest.get(column, LENGTH_MAX)}"
    return ""


def _numbers(column: bytes, code: str) -> list[int]:
    return list(struct.unpack(f"<{len(column) // struct.calcsize(f'<{code}')}{code}", column))
