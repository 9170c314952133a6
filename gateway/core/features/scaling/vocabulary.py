"""Vocabulary of scaling: what a gateway measures of a pool, what it reports to other gateways, and what is wanted.

Values only, no decisions. Requests are counted in thousandths, so that their sums are exact.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.core.vocabulary import DEFAULT_POOL, GatewayId, ModelName, PoolName, RegionName, ServiceClass, Word

WHOLE: Final = 1000
"""Thousandths in one request."""


class PoolKey(Struct, frozen=True):
    """Replicas of one pool that serve one model, identified by the first of its names; each region has such replicas or
    none."""

    model: ModelName
    pool: PoolName


class Floor(Struct, frozen=True):
    """Least number of replicas from this minute of the day (UTC) until the next floor."""

    minute: int
    replicas: int


class PoolSettings(Struct, frozen=True):
    """Operator's settings of one pool of a region."""

    model: ModelName
    concurrency: int
    """Requests that one replica is meant to run at once within its objective, as opposed to the most it can hold."""
    replicas_max: int
    pool: PoolName = DEFAULT_POOL
    replicas_min: int = 1
    price: float = 0.0
    """Price of a replica-hour; the cheapest region that could help is asked first. If all are 0, the region with the
    queue."""
    floors: tuple[Floor, ...] = ()
    """Plan for the day, in order of time; it repeats at midnight."""

    @property
    def key(self) -> PoolKey:
        return PoolKey(self.model, self.pool)

    def least_at(self, minute_of_day: int) -> int:
        """Least number of replicas at this minute of the day."""
        floor = 0
        if self.floors:
            begun = [each for each in self.floors if each.minute <= minute_of_day]
            floor = (begun or self.floors)[-1].replicas
        return min(max(self.replicas_min, floor), self.replicas_max)


class ScalingSettings(Struct, frozen=True):
    """Settings of load averaging and of the rate of change."""

    mesh: bool = True
    """False: each region scales for itself, regardless of neighbours' spare capacity."""
    classes: tuple[ServiceClass, ...] = (ServiceClass.INTERACTIVE, ServiceClass.BATCH)
    """Classes that replicas are started for; requests of other classes use idle capacity."""
    window_ns: int = 60_000_000_000
    """Time constant of the load averages: a sample of this age counts for 37 %."""
    drain_ns: int = 60_000_000_000
    """Time within which an existing queue is to be worked off."""
    headroom: float = 1.0
    """Spare slots, in square roots of the load: with 1, one request in four or five waits a moment, with 2 one in
    fifty."""
    slack_share: float = 0.1
    """Additional load that must still find room without a replica before that replica is removed."""
    up_after_ns: int = 15_000_000_000
    """Time for which replicas must be missing before more are wanted."""
    down_after_ns: int = 300_000_000_000
    """Time for which fewer replicas must have sufficed before fewer are wanted."""
    down_every_ns: int = 60_000_000_000
    """Least time between two removals of one replica each, over the whole mesh."""
    start_max_ns: int = 600_000_000_000
    """Time after which replicas that a neighbour has asked for but does not have are not counted on."""
    reach_ns: int = 250_000_000
    """Largest round trip to neighbours that are counted on; it adds to each first token."""
    patience_ns: int = 60_000_000_000
    """Time that requests may wait although neighbours report idle capacity before the neighbours are distrusted."""
    distrust_ns: int = 1_800_000_000_000
    """Time for which distrusted neighbours are not counted on."""


class Sample(Struct):
    """Sample of one pool at one gateway. Clients' requests count where they arrived, wherever they run."""

    ready: int = 0
    """Healthy replicas here that were not announced to leave."""
    running: int = 0
    """Clients' requests that run, here or at a peer."""
    waiting: int = 0
    """Clients' requests that wait here."""
    pinned: int = 0
    """Running and waiting requests that may not leave the region."""
    sent: int = 0
    """Running requests that run in other regions."""
    taken: int = 0
    """Other regions' requests that run here; they count as those regions' demand."""


class PoolLoad(Struct, frozen=True):
    """Report of one gateway on one pool of its region."""

    key: PoolKey
    ready: int
    wanted: int
    """Replicas wanted for the whole region, according to this gateway."""
    concurrency: int
    least: int
    most: int
    offered: int
    """Clients' requests that want to run at once, in thousandths."""
    pinned: int
    """Part of `offered` that may not leave the region, in thousandths."""
    queue: int
    price: int
    """Price of a replica-hour, in millionths."""
    is_alone: bool = False
    """The region relies on no neighbour for the time being: its requests waited although neighbours reported idle
    capacity."""


class Way(Struct, frozen=True):
    """Region that another region's requests may go to, by that region's policy, and the round trip to it."""

    region: RegionName
    rtt_ns: int


class ScalingReport(Struct, frozen=True):
    """Scaling part of a gateway's report to its peers, sent beside its load."""

    loads: tuple[PoolLoad, ...] = ()
    ways: tuple[Way, ...] = ()
    accepts: tuple[RegionName, ...] = ()
    """Regions whose requests the gateway's policy accepts."""


class RegionNeed(Struct, frozen=True):
    """One region's input to the plan."""

    region: RegionName
    replicas: int
    """Replicas that the region has asked for and is believed to have or to get."""
    concurrency: int
    least: int
    most: int
    needed: int
    """Slots for its clients' requests, with headroom, in thousandths."""
    pinned: int
    queue: int = 0
    price: int = 0
    ways: tuple[Way, ...] = ()
    """Regions that its requests may go to and that accept them, nearest first."""
    is_alone: bool = False


class ScalingReason(Word):
    """Reason for the number of replicas wanted."""

    STEADY = "steady"
    """The present number is right."""
    BOUNDS = "bounds"
    """The lower or upper bound, or the floor for this time of day, has changed."""
    LOAD = "load"
    """Load of the region's own clients exceeds the slots here and at neighbours."""
    NEIGHBOURS = "neighbours"
    """Load of other regions does, and this region was chosen for it."""
    WAITS = "waits"
    """More replicas will be wanted if the need lasts."""
    BORROWS = "borrows"
    """More replicas would be wanted here without neighbours' spare capacity."""
    LENDS = "lends"
    """Fewer replicas would suffice here if neighbours did not rely on this region."""
    COOLS = "cools"
    """Fewer replicas will be wanted if the surplus lasts."""
    IDLE = "idle"
    """Fewer replicas suffice."""
    AT_MOST = "at_most"
    """More replicas would be wanted than the upper bound allows."""


class Want(Struct, frozen=True):
    """Replicas wanted of one pool in this gateway's region."""

    region: RegionName
    key: PoolKey
    wanted: int
    reason: ScalingReason
    ready: int
    alone: int
    """Replicas that would be wanted without neighbours."""
    offered: int
    borrowed: int
    """Slots of neighbours that are counted on, in thousandths."""
    lent: int
    missing: int
    """Slots that no region has or may add, in thousandths."""
    least: int
    most: int
    concurrency: int
    changed_ns: int = 0
    """Time of the last change of `wanted`."""

    @property
    def missing_replicas(self) -> int:
        """Further replicas that would be wanted without the upper bound."""
        return -(-self.missing // (self.concurrency * WHOLE))


class Heard(Struct, frozen=True):
    """Last report of a gateway, with the time of its receipt."""

    gateway_id: GatewayId
    region: RegionName
    report: ScalingReport
    heard_ns: int
