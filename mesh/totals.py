"""Counts of one gateway since its process started, from which rates over any interval follow."""

from __future__ import annotations

from msgspec import Struct

FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Upper bounds in seconds of the buckets for first tokens; a last bucket has no bound."""


class Totals(Struct, frozen=True):
    """Counts since the process started, of the requests that clients sent to this gateway, and one level."""

    requests: int = 0
    """Requests that have ended."""
    errors: int = 0
    """Requests that failed, expired or were rejected, counted in `requests` too."""
    forwards: int = 0
    """Requests sent to other gateways."""
    first_tokens: tuple[int, ...] = (0,) * (len(FIRST_TOKEN_BOUNDS_S) + 1)
    """Streams by the time from arrival to first token, in the buckets of FIRST_TOKEN_BOUNDS_S; not cumulative."""
    waiting: int = 0
    """Requests in the queues now."""
