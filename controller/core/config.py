"""What an operator may set of the controller's decisions. Plain values; who reads a file makes them."""

from __future__ import annotations

from gateway.core.value import value
from gateway.core.vocabulary import Jurisdiction

_SECOND_NS = 1_000_000_000


@value
class ControllerConfig:
    """Defaults are for a mesh across continents whose gateways send heartbeats every 100 ms."""

    probe_failures_min: int = 3
    """So many probes in a row have failed before a gateway may be called down,"""
    silence_ns: int = 3 * _SECOND_NS
    """and no peer whom we hear has heard of it for so long, unless its connection broke."""
    unknown_for_ns: int = 30 * _SECOND_NS
    """After a start: a gateway that was not heard of yet is left alone for so long."""
    return_after_ns: int = 5 * _SECOND_NS
    """It has to answer for so long before it counts as up again;"""
    return_after_max_ns: int = 300 * _SECOND_NS
    """twice as long each time it goes down soon after, up to this."""
    steady_after_ns: int = 600 * _SECOND_NS
    """Up for so long, it has earned back the shorter time."""
    freeze_window_ns: int = 60 * _SECOND_NS
    """More than half of the gateways missing within this is taken for a fault of our own sight."""
    freeze_max_ns: int = 60 * _SECOND_NS
    """Believed after all once so long has passed and every gateway that we hear says the same."""
    step_share: float = 0.25
    """Of a gateway's replicas, what moves in one step where nobody is in need: home again, or by an order."""
    step_ns: int = 1 * _SECOND_NS
    adopted_max: int = 256
    """Of other gateways' replicas, what one gateway is given; a pool goes as a whole, and may be the last of them."""
    ttl_s: int = 5
    closed_jurisdictions: frozenset[Jurisdiction] = frozenset()
    """Clients there are only told of gateways there."""
