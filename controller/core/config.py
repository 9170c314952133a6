"""Settings of the controller's decisions: plain values, made by the reader of the configuration file."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import Jurisdiction

_SECOND_NS = 1_000_000_000


class ControllerConfig(Struct, frozen=True):
    """Defaults are for a mesh across continents whose gateways send heartbeats every 100 ms."""

    probe_failures_min: int = 3
    """Consecutive probes that must have failed before a gateway may be called down."""
    silence_ns: int = 3 * _SECOND_NS
    """Time for which no connected peer may have heard from a gateway before it is called down; peers whose connection
    to it broke do not count."""
    unknown_for_ns: int = 30 * _SECOND_NS
    """Time after the controller's start, or the gateway's registration, in which a gateway not heard from yet is not
    called down."""
    return_after_ns: int = 5 * _SECOND_NS
    """Time for which a gateway that was down has to answer before it counts as up again."""
    return_after_max_ns: int = 300 * _SECOND_NS
    """Upper bound of that time, which doubles each time the gateway goes down again without having been steady."""
    steady_after_ns: int = 600 * _SECOND_NS
    """Time up after which a gateway is steady: its next return takes `return_after_ns` again."""
    freeze_window_ns: int = 60 * _SECOND_NS
    """Window of a mass loss: where more gateways went missing within it than are connected, the controller suspects its
    own network and freezes."""
    freeze_max_ns: int = 60 * _SECOND_NS
    """Time after which such a freeze ends and the loss is believed, provided that at least one gateway is connected."""
    step_share: float = 0.25
    """Share of a gateway's replicas that moves in one step where the move is not urgent: back home, or by an order."""
    step_ns: int = 1 * _SECOND_NS
    adopted_max: int = 256
    """Replicas of other gateways that one gateway may be given; a pool counts as a whole and may exceed the limit."""
    ttl_s: int = 5
    closed_jurisdictions: frozenset[Jurisdiction] = frozenset()
    """Jurisdictions whose clients are only directed to gateways in the same jurisdiction."""
