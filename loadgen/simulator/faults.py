"""Faults of a simulated world: kind, time and duration. Values only; the world applies them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

_MILLISECOND_NS = 1_000_000
CONTROLLER = "controller"
STANDBY = "controller-2"
"""Name of the second controller of a pair."""
"""Both names are the controllers' names in faults; in partitions, each is a region of its own."""


class FaultKind(StrEnum):
    """Kind of fault; each member says what `target`, `other` and `amount` mean for it."""

    REPLICA_CRASH = "replica_crash"
    """Crash of a replica, which restarts with an empty cache."""
    REPLICA_SLOW = "replica_slow"
    """Slow replica; amount: factor on all durations there."""
    REPLICA_HANG = "replica_hang"
    """Hang of a replica: it accepts requests and answers probes, but makes no progress until the end."""
    REPLICA_LEAVES = "replica_leaves"
    """Announcement that a replica will be gone; amount: seconds of notice. The engine goes on, unless it crashes; at
    the end the announcement is withdrawn."""
    GATEWAY_CRASH = "gateway_crash"
    """Crash of a gateway, which restarts with its configuration only."""
    GATEWAY_DRAIN = "gateway_drain"
    """Drain of a gateway; at the end another process replaces it, even if it still has requests."""
    LOCKDOWN = "lockdown"
    """Lockdown: a gateway's operator stops all forwarding."""
    LOCKDOWN_CUT = "lockdown_cut"
    """Lockdown that also ends streams that cross gateways."""
    PARTITION = "partition"
    """Partition: two regions cannot reach each other."""
    ONE_WAY_PARTITION = "one_way_partition"
    """Partition in one direction: messages from the first region do not reach the other."""
    SLOW_LINK = "slow_link"
    """Slow connection of two regions; amount: factor on all delays between them."""
    LOSSY_LINK = "lossy_link"
    """Loss on the connection of two regions; amount: share of packets lost, both ways."""
    UNSTEADY_LINK = "unsteady_link"
    """Jitter on the connection of two regions; amount: maximum extension of each delay, as a share of it."""
    HEARTBEAT_LOSS = "heartbeat_loss"
    """Loss of a gateway's heartbeats; amount: share that is lost."""
    HEARTBEAT_DELAY = "heartbeat_delay"
    """Delay of a gateway's heartbeats; amount: seconds."""
    POLICY_UNREADABLE = "policy_unreadable"
    """Unreadable policy file of a gateway, which then neither forwards nor accepts forwards."""
    LATE_ANSWERS = "late_answers"
    """Late reports to a gateway; amount: share of ended attempts that are reported again, later and wrongly."""

    GATEWAY_SILENT = "gateway_silent"
    """Loss of a gateway's host: connections are not closed, and requests sent there are never answered. It restarts as
    after a crash."""
    GATEWAY_STALLED = "gateway_stalled"
    """Stall of a gateway's process, as on a frozen host: it stops for a while, and then goes on without noticing."""
    CONTROLLER_CRASH = "controller_crash"
    """Crash of the controller, which restarts with what it had written to the store."""
    STORE_LOST = "store_lost"
    """Crash of the controller with the loss of its store."""
    CLOCK_JUMP = "clock_jump"
    """Jump of the controller's clock; amount: seconds forward, as after a suspended machine."""
    SNAPSHOT_LOSS = "snapshot_loss"
    """Broken streams to a gateway; amount: share of snapshots with which its stream breaks."""
    SNAPSHOT_DELAY = "snapshot_delay"
    """Delay of snapshots to a gateway; amount: seconds. Snapshots sent after the fault may overtake delayed ones."""
    OLD_SNAPSHOT = "old_snapshot"
    """Crash of a gateway, which restarts with an older snapshot on its disk than it had."""

    CONTROLLER_STOPPED = "controller_stopped"
    """Suspension of a pair's controller: its process stops for a while, and then continues without noticing."""
    STORE_CUT = "store_cut"
    """Cut between a pair's controller and the store."""

    @property
    def joins_regions(self) -> bool:
        return self in _JOINING

    @property
    def hits_both_ways(self) -> bool:
        return self in _JOINING and self is not FaultKind.ONE_WAY_PARTITION

    @property
    def hits_replica(self) -> bool:
        return self in _AT_REPLICAS

    @property
    def hits_controller(self) -> bool:
        return self in (FaultKind.CONTROLLER_CRASH, FaultKind.STORE_LOST, FaultKind.CLOCK_JUMP) or self.needs_pair

    @property
    def is_drawn(self) -> bool:
        """True if random faults include it. The others belong to worlds of chaos of their own."""
        return self not in _UNDRAWN

    @property
    def needs_pair(self) -> bool:
        return self in (FaultKind.CONTROLLER_STOPPED, FaultKind.STORE_CUT)

    @property
    def needs_controller(self) -> bool:
        """True if the fault needs a controller in the scenario."""
        return self in _NEEDING_CONTROLLER

    @property
    def needs_amount(self) -> bool:
        return self not in (
            FaultKind.GATEWAY_SILENT,
            FaultKind.GATEWAY_STALLED,
            FaultKind.CONTROLLER_CRASH,
            FaultKind.CONTROLLER_STOPPED,
            FaultKind.STORE_CUT,
            FaultKind.STORE_LOST,
            FaultKind.OLD_SNAPSHOT,
            FaultKind.REPLICA_CRASH,
            FaultKind.REPLICA_HANG,
            FaultKind.GATEWAY_CRASH,
            FaultKind.GATEWAY_DRAIN,
            FaultKind.LOCKDOWN,
            FaultKind.LOCKDOWN_CUT,
            FaultKind.PARTITION,
            FaultKind.ONE_WAY_PARTITION,
            FaultKind.POLICY_UNREADABLE,
        )


_JOINING = frozenset(
    {
        FaultKind.PARTITION,
        FaultKind.ONE_WAY_PARTITION,
        FaultKind.SLOW_LINK,
        FaultKind.LOSSY_LINK,
        FaultKind.UNSTEADY_LINK,
    }
)
_AT_REPLICAS = frozenset(
    {FaultKind.REPLICA_CRASH, FaultKind.REPLICA_SLOW, FaultKind.REPLICA_HANG, FaultKind.REPLICA_LEAVES}
)
_UNDRAWN = frozenset(
    {FaultKind.LOSSY_LINK, FaultKind.UNSTEADY_LINK, FaultKind.GATEWAY_STALLED, FaultKind.REPLICA_LEAVES}
)
_NEEDING_CONTROLLER = frozenset(
    {
        FaultKind.CONTROLLER_CRASH,
        FaultKind.CONTROLLER_STOPPED,
        FaultKind.STORE_CUT,
        FaultKind.STORE_LOST,
        FaultKind.CLOCK_JUMP,
        FaultKind.SNAPSHOT_LOSS,
        FaultKind.SNAPSHOT_DELAY,
        FaultKind.OLD_SNAPSHOT,
    }
)

FaultKey = tuple[FaultKind, str, str]
"""Kind and place of a fault."""


@dataclass(frozen=True, slots=True)
class SimFault:
    """One fault that heals again; repeated, it flaps."""

    kind: FaultKind
    at_ns: int
    lasts_ns: int
    target: str
    other: str = ""
    amount: float = 0.0
    times: int = 1
    every_ns: int = 0

    def __str__(self) -> str:
        where = f"{self.target} {self.other}".rstrip()
        return f"{self.kind} {where}" + (f" {self.amount:g}" if self.kind.needs_amount else "")

    @property
    def key(self) -> FaultKey:
        """Identity of the fault: symmetric faults between two regions share a key, whichever region is named first."""
        if self.kind.hits_both_ways and self.other < self.target:
            return self.kind, self.other, self.target
        return self.kind, self.target, self.other

    def spans(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each occurrence."""
        for number in range(self.times):
            start_ns = self.at_ns + number * self.every_ns
            yield start_ns, start_ns + self.lasts_ns


@dataclass(frozen=True, slots=True)
class FaultPlaces:
    """Places that faults can hit."""

    replicas: Sequence[str]
    gateways: Sequence[str]
    regions: Sequence[str]
    has_controller: bool = False
    has_pair: bool = False

    @property
    def controllers(self) -> list[str]:
        return [CONTROLLER, STANDBY] if self.has_pair else [CONTROLLER] if self.has_controller else []


def random_faults(rng: random.Random, places: FaultPlaces, *, count: int, until_ns: int) -> list[SimFault]:
    """Draw `count` faults, all healed by `until_ns`; they may overlap."""
    kinds = [kind for kind in FaultKind if _has_a_place(kind, places)]
    return [_random_fault(rng, places, rng.choice(kinds), until_ns) for _ in range(count)]


def _has_a_place(kind: FaultKind, places: FaultPlaces) -> bool:
    if not kind.is_drawn:
        return False
    if (kind.needs_controller or kind is FaultKind.GATEWAY_SILENT) and not places.has_controller:
        return False
    if kind.needs_pair and not places.has_pair:
        return False
    if kind is FaultKind.STORE_LOST and places.has_pair:
        return False  # a pair's shared store is lost for good, with the record of which controller led
    return not kind.joins_regions or len(places.regions) > 1


def _random_fault(rng: random.Random, places: FaultPlaces, kind: FaultKind, until_ns: int) -> SimFault:
    times = rng.choice((1, 1, 1, 2, 4))
    at_ns = rng.randrange(until_ns // 2)
    every_ns = (until_ns - at_ns) // times
    lasts_ns = max(_MILLISECOND_NS, round(every_ns * rng.uniform(0.1, 0.9)))
    if kind.joins_regions:
        regions = [*places.regions, *places.controllers]
        target, other = rng.sample(regions, 2)
    elif kind.hits_controller:
        target, other = rng.choice(places.controllers) if places.has_pair else CONTROLLER, ""
    else:
        target, other = rng.choice(places.replicas if kind.hits_replica else places.gateways), ""
    return SimFault(kind, at_ns, lasts_ns, target, other, _random_amount(rng, kind), times, every_ns)


def _random_amount(rng: random.Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.REPLICA_SLOW | FaultKind.SLOW_LINK:
            return round(rng.uniform(2, 20), 1)
        case FaultKind.HEARTBEAT_LOSS | FaultKind.LATE_ANSWERS | FaultKind.SNAPSHOT_LOSS:
            return round(rng.uniform(0.2, 1), 2)
        case FaultKind.HEARTBEAT_DELAY | FaultKind.SNAPSHOT_DELAY:
            return round(rng.uniform(0.1, 5), 2)
        case FaultKind.CLOCK_JUMP:
            return round(rng.uniform(1, 60), 1)
        case _:
            return 0.0
