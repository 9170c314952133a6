"""Settings of fair queuing between tenants."""

from __future__ import annotations

from msgspec import Struct

_SECOND_NS = 1_000_000_000


class SharingConfig(Struct, frozen=True):
    """Fair queuing between tenants (Virtual Token Counter, Sheng et al., OSDI 2024)."""

    fair: bool = True
    """False: first come, first served, regardless of tenant."""
    input_weight: float = 1.0
    """Weight of a prompt token."""
    output_weight: float = 2.0
    """Weight of an output token; higher, because it occupies an engine for longer."""
    prefix_slack_tokens: int = 1024
    """Weighted tokens by which a tenant may exceed the lowest counter and still go first because a free engine has more
    of its prompt cached; 0: none."""
    aging_ns: int = 10 * _SECOND_NS
    """Wait after which a request rises by one step of priority."""
    yields_above: float | None = None
    """Multiple of its share of the running requests above which a tenant yields while other tenants are active: its
    requests are placed like batch requests, and after those of the others. None: no tenant yields."""
    tenants_max: int = 4096
    """Number of tenants with a counter of their own. Above it, counters of inactive tenants are dropped; if there are
    none, new tenants share one counter."""
