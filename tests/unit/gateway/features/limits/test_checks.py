from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.features.limits.config import SharesConfig
from gateway.features.limits.checks import limits_faults

SECOND = 1_000_000_000


def test_shares_are_held_for_longer_than_heartbeats_are_apart() -> None:
    assert not list(limits_faults(CoreConfig()))
    (fault,) = limits_faults(CoreConfig(shares=SharesConfig(reserved_ns=SECOND // 1000)))
    assert (fault.key, fault.beside) == ("shares.reserved", "observation.keep_alive")
    (fault,) = limits_faults(CoreConfig(shares=SharesConfig(demand_window_ns=61 * SECOND)))
    assert fault.key == "shares.demand_window"
