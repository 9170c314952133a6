"""Settings of the controller's decisions: plain values, made by the reader of the configuration file."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import Jurisdiction

_SECOND_NS = 1_000_000_000


class ControllerConfig(Struct, frozen=True):
    """Timing of failover and reassignment. The defaults suit a mesh across continents whose gateways send heartbeats
    every 100 ms."""

    probe_failures_min: int = 3
    """Consecutive failed probes that are needed before a gateway is declared down."""
    silence_ns: int = 3 * _SECOND_NS
    """Time without heartbeats at any connected peer that is needed before a gateway is declared down; peers whose
    connection to it broke do not count."""
    unknown_for_ns: int = 30 * _SECOND_NS
    """Time after the start of the controller, or the registration of a gateway, in which a gateway not heard from is
    not declared down, unless most other gateways have heard it and do so no more."""
    return_after_ns: int = 5 * _SECOND_NS
    """Time for which a gateway that was down has to answer probes before it counts as up again. One that refused
    no probe meanwhile and is down for the first time since it was steady needs to answer one probe."""
    return_after_max_ns: int = 300 * _SECOND_NS
    """Longest value of `return_after`, which doubles each time a gateway goes down again before `steady_after`."""
    steady_after_ns: int = 600 * _SECOND_NS
    """Uptime after which `return_after` of a gateway is reset to its configured value."""
    freeze_window_ns: int = 60 * _SECOND_NS
    """Window of a mass loss: when more gateways go missing within it than stay connected, the controller freezes."""
    freeze_max_ns: int = 60 * _SECOND_NS
    """Time after which an automatic freeze ends and the gateways are declared down, provided that one gateway is
    connected."""
    step_share: float = 0.25
    """Share of a gateway's replicas that moves in one step of a reassignment that is not urgent."""
    step_ns: int = 1 * _SECOND_NS
    """Time between two steps of a reassignment that is not urgent."""
    adopted_max: int = 256
    """Most replicas of other gateways that one gateway is assigned; a pool counts as a whole and may exceed the
    limit."""
    left_out_retry_ns: int = 300 * _SECOND_NS
    """Time after which replicas that a gateway left out are offered to it again."""
    further_gateways: int = 0
    """Number of regions beyond the nearest, at most three, of which a DNS answer names one gateway each, so that
    clients whose connection is refused have another address. Only regions count where each tenant's requests may enter,
    be processed and go on as in their own. With one gateway a region and N further ones, up to N of N + 1 new
    connections go to these."""
    ttl_s: int = 5
    """Time to live of DNS answers, in seconds."""
    closed_jurisdictions: frozenset[Jurisdiction] = frozenset()
    """Jurisdictions whose clients are directed only to gateways in the same jurisdiction. Empty: none."""
