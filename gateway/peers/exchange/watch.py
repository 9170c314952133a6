"""Who is told of what is odd about exchanges; each gateway counts it by the peer it has it from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.vocabulary import GatewayId


def _nobody(*_: object) -> None:
    """Is told."""


@dataclass(frozen=True, slots=True)
class Watch:
    ignored: Callable[[GatewayId], None] = _nobody
    """A frame was about a forward that is over, or never was."""
    broken: Callable[[GatewayId, str], None] = _nobody
    """A stream ended that should not have: why, in words."""


UNWATCHED = Watch()
