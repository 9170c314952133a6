"""Callbacks for irregular events on exchanges; each gateway counts them by the peer that caused them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gateway.core.vocabulary import GatewayId


def _ignore(*_: object) -> None:
    """Default callback, which does nothing."""


class StreamCallbacks(Struct, frozen=True):
    ignored: Callable[[GatewayId], None] = _ignore
    """Called for a frame about a forward that is over or never began."""
    broken: Callable[[GatewayId, str], None] = _ignore
    """Called when a stream ended that should not have, with the reason in words."""


UNWATCHED = StreamCallbacks()
