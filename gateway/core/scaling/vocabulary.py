"""The words of scaling: what a gateway measures of a pool, what it tells others of it, and what is wanted.

Values only; nothing here decides anything. Requests are counted in thousandths, so that sums of them are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.core.value import value
from gateway.core.vocabulary import DEFAULT_POOL, GatewayId, ModelName, PoolName, RegionName, ServiceClass, Word

WHOLE: Final = 1000
"""Thousandths in one request."""


@value
class PoolKey:
    """The replicas of one pool that serve one model, by the first of its names; a region has them or has none."""

    model: ModelName
    pool: PoolName


@value
class Floor:
    """From this minute of the day on (UTC), and until the next one, at least so many are wanted."""

    minute: int
    replicas: int


@value
class PoolSettings:
    """What an operator says of one pool of a region."""

    model: ModelName
    concurrency: int
    """Requests that one replica is to run at once: what it does within its objective, and not what it can hold."""
    replicas_max: int
    pool: PoolName = DEFAULT_POOL
    replicas_min: int = 1
    price: float = 0.0
    """Of a replica-hour; the cheapest of those that could help is asked. Zeros: whoever has the queue."""
    floors: tuple[Floor, ...] = ()
    """A plan for the day, in order of time; it begins anew at midnight."""

    @property
    def key(self) -> PoolKey:
        return PoolKey(self.model, self.pool)

    def least_at(self, minute_of_day: int) -> int:
        """What is wanted at least now."""
        floor = 0
        if self.floors:
            begun = [each for each in self.floors if each.minute <= minute_of_day]
            floor = (begun or self.floors)[-1].replicas
        return min(max(self.replicas_min, floor), self.replicas_max)


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """How load is averaged, and how fast what is wanted may change."""

    mesh: bool = True
    """Off: each region scales for itself, whatever its neighbours have to spare."""
    classes: tuple[ServiceClass, ...] = (ServiceClass.INTERACTIVE, ServiceClass.BATCH)
    """Whose requests replicas are started for; those of others have what idles."""
    window_ns: int = 60_000_000_000
    """Over which load is averaged: what came so long ago counts for 37 %."""
    drain_ns: int = 60_000_000_000
    """In which a queue that has come about is to be worked off."""
    headroom: float = 1.0
    """Spare slots, in square roots of the load: 1 for one request in four or five that waits a moment, 2 for one in
    fifty."""
    slack_share: float = 0.1
    """A replica goes only when so much more load would find room without it."""
    up_after_ns: int = 15_000_000_000
    """More are wanted only after having been missing for so long, ..."""
    down_after_ns: int = 300_000_000_000
    """... and fewer after having been too many for so long."""
    down_every_ns: int = 60_000_000_000
    """One goes at a time, and the next one of the mesh no sooner."""
    start_max_ns: int = 600_000_000_000
    """What a neighbour has asked for and still does not have after this long is not counted on."""
    reach_ns: int = 250_000_000
    """Neighbours farther away than this, there and back, are not counted on: it comes on top of each first token."""
    patience_ns: int = 60_000_000_000
    """Where requests wait for so long although neighbours are said to be idle, ..."""
    distrust_ns: int = 1_800_000_000_000
    """... nobody is counted on for this long."""


@dataclass(slots=True)
class Sample:
    """One look at a gateway, of one pool. Clients' requests count where they came in, wherever they run."""

    ready: int = 0
    """Replicas here that answer."""
    running: int = 0
    """Clients' requests that run, here or at a peer."""
    waiting: int = 0
    """Clients' requests that wait here."""
    pinned: int = 0
    """Of both, those that may not leave the region."""
    sent: int = 0
    """Of those that run, the ones in other regions."""
    taken: int = 0
    """Other regions' requests here; they are their demand, and not ours."""


@value
class PoolLoad:
    """What one gateway tells others of one pool of its region."""

    key: PoolKey
    ready: int
    wanted: int
    """Of the whole region, as this gateway has it."""
    concurrency: int
    least: int
    most: int
    offered: int
    """Clients' requests that want to run at once, in thousandths."""
    pinned: int
    """Of these, what may not leave the region, likewise."""
    queue: int
    price: int
    """In millionths."""
    is_alone: bool = False
    """It counts on nobody for now: its requests waited although neighbours were said to be idle."""


@value
class Way:
    """Where a region's requests may go, as its own policy and the distance say."""

    region: RegionName
    rtt_ns: int


@value
class ScalingReport:
    """What one gateway tells its peers, beside its load."""

    loads: tuple[PoolLoad, ...] = ()
    ways: tuple[Way, ...] = ()
    accepts: tuple[RegionName, ...] = ()
    """Regions whose requests its own policy takes in."""


@value
class RegionNeed:
    """One region, as a plan is made for all of them."""

    region: RegionName
    replicas: int
    """Those that it has asked for, and is believed to have or to get."""
    concurrency: int
    least: int
    most: int
    needed: int
    """Slots, in thousandths: of its clients' requests, with headroom."""
    pinned: int
    queue: int = 0
    price: int = 0
    ways: tuple[Way, ...] = ()
    """To whom its requests may go and who takes them, the nearest first."""
    is_alone: bool = False


class Reason(Word):
    """Why so many are wanted."""

    STEADY = "steady"
    """What there is, is right."""
    BOUNDS = "bounds"
    """The least or the most that it may be, or the plan for this time of day, has changed."""
    LOAD = "load"
    """Its own clients' load wants more than is here and at neighbours."""
    NEIGHBOURS = "neighbours"
    """Others' load does, and this is the region that was chosen for it."""
    WAITS = "waits"
    """More would be wanted, if that lasts."""
    BORROWS = "borrows"
    """More would be wanted here, if neighbours had nothing to spare."""
    LENDS = "lends"
    """Fewer would do here, if neighbours did not count on this one."""
    COOLS = "cools"
    """Fewer would do, if that lasts."""
    IDLE = "idle"
    """Fewer do."""
    AT_MOST = "at_most"
    """More would be wanted than there may be."""


@value
class Want:
    """What is wanted of one pool in this gateway's region."""

    region: RegionName
    key: PoolKey
    wanted: int
    reason: Reason
    ready: int
    alone: int
    """What would be wanted if there were no neighbours."""
    offered: int
    borrowed: int
    """Slots of neighbours that are counted on, in thousandths."""
    lent: int
    missing: int
    """Slots that nobody may have or get, likewise."""
    least: int
    most: int
    concurrency: int
    changed_ns: int = 0
    """When what is wanted last changed."""

    @property
    def missing_replicas(self) -> int:
        """How many more would be wanted, if there might be as many."""
        return -(-self.missing // (self.concurrency * WHOLE))


@value
class Heard:
    """What a gateway last told, and when that came in."""

    gateway_id: GatewayId
    region: RegionName
    report: ScalingReport
    heard_ns: int
