"""Checks of the settings by which gateways share tenants' limits."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.config import CoreConfig
from mesh.faults import FileFault
from mesh.values import SECOND_NS

_MINUTE_NS = 60 * SECOND_NS


def limits_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults between settings that decisions depend on."""
    observation = core.observation
    if core.shares.reserved_ns < 3 * observation.keep_alive_ns:
        yield FileFault(
            "shares.reserved", "is below three times observation.keep_alive", beside="observation.keep_alive"
        )
    if not observation.publish_interval_ns <= core.shares.demand_window_ns <= _MINUTE_NS:
        yield FileFault("shares.demand_window", "is at least observation.publish_interval, and a minute at most")
