"""Remainder of a limit, as clients are told of it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.core.vocabulary import Word

TRY_AGAIN_NS: Final = 1_000_000_000
"""Retry-after where the end of another request may make room, at a time that is not known."""


class LimitKind(Word):
    CONCURRENCY = "concurrency"
    REQUESTS = "requests"
    TOKENS = "tokens"


class LimitAllowance(Struct):
    """Remainder of a limit per minute at this gateway."""

    kind: LimitKind
    limit: int
    """Limit of all gateways together."""
    remaining: int
    reset_ns: int
    """Time until this gateway's share of the limit is full again."""
