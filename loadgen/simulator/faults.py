"""What may go wrong in a simulated world, when, and for how long. Values only: the world does it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

_MILLISECOND_NS = 1_000_000
CONTROLLER = "controller"
STANDBY = "controller-2"
"""The second of a pair."""
"""What faults call it; of partitions, a region of its own."""


class FaultKind(StrEnum):
    """Each with what `target`, `other` and `amount` mean for it."""

    REPLICA_CRASH = "replica_crash"
    """A replica. It comes back with an empty cache."""
    REPLICA_SLOW = "replica_slow"
    """A replica; amount: how many times as long everything takes there."""
    REPLICA_HANG = "replica_hang"
    """A replica that takes what it is sent and says that it is well, and does nothing until it goes on."""
    GATEWAY_CRASH = "gateway_crash"
    """A gateway. It comes back knowing nothing but its configuration."""
    GATEWAY_DRAIN = "gateway_drain"
    """A gateway that goes out of service; at the end another process takes its place, whoever is still there."""
    LOCKDOWN = "lockdown"
    """A gateway whose operator stops all forwarding."""
    LOCKDOWN_CUT = "lockdown_cut"
    """The same, and streams that cross gateways end as well."""
    PARTITION = "partition"
    """Two regions that cannot reach each other."""
    ONE_WAY_PARTITION = "one_way_partition"
    """Nothing gets from the first region to the other."""
    SLOW_LINK = "slow_link"
    """Two regions; amount: how many times as long everything takes between them."""
    HEARTBEAT_LOSS = "heartbeat_loss"
    """A gateway; amount: the share of its heartbeats that nobody gets."""
    HEARTBEAT_DELAY = "heartbeat_delay"
    """A gateway; amount: by how many seconds its heartbeats come late."""
    POLICY_UNREADABLE = "policy_unreadable"
    """A gateway whose policy file cannot be used: it keeps to itself."""
    LATE_ANSWERS = "late_answers"
    """A gateway; amount: the share of ended attempts about which it is told again, later and wrongly."""

    GATEWAY_SILENT = "gateway_silent"
    """A gateway whose host is gone: nobody is told, and what is sent there is never answered. It comes back as after a
    crash."""
    CONTROLLER_CRASH = "controller_crash"
    """It comes back with what it had written down."""
    STORE_LOST = "store_lost"
    """The controller crashes, and comes back with nothing."""
    CLOCK_JUMP = "clock_jump"
    """The controller; amount: by how many seconds its clock is ahead all at once, as after a suspended machine."""
    SNAPSHOT_LOSS = "snapshot_loss"
    """A gateway; amount: the share of snapshots on whose way to it its stream breaks."""
    SNAPSHOT_DELAY = "snapshot_delay"
    """A gateway; amount: by up to how many seconds snapshots come late, and perhaps after newer ones."""
    OLD_SNAPSHOT = "old_snapshot"
    """A gateway that crashes, and comes back with an older snapshot on its disk than it had."""

    CONTROLLER_STOPPED = "controller_stopped"
    """Its process does nothing for a while, and then goes on as if nothing had been: one of a pair."""
    STORE_CUT = "store_cut"
    """One of a pair reaches the store no more."""

    @property
    def joins_regions(self) -> bool:
        return self in (FaultKind.PARTITION, FaultKind.ONE_WAY_PARTITION, FaultKind.SLOW_LINK)

    @property
    def hits_both_ways(self) -> bool:
        return self in (FaultKind.PARTITION, FaultKind.SLOW_LINK)

    @property
    def hits_replica(self) -> bool:
        return self in (FaultKind.REPLICA_CRASH, FaultKind.REPLICA_SLOW, FaultKind.REPLICA_HANG)

    @property
    def hits_controller(self) -> bool:
        return self in (FaultKind.CONTROLLER_CRASH, FaultKind.STORE_LOST, FaultKind.CLOCK_JUMP) or self.needs_pair

    @property
    def needs_pair(self) -> bool:
        return self in (FaultKind.CONTROLLER_STOPPED, FaultKind.STORE_CUT)

    @property
    def needs_controller(self) -> bool:
        """Where there is none, it cannot happen."""
        return self in _NEEDING_CONTROLLER

    @property
    def needs_amount(self) -> bool:
        return self not in (
            FaultKind.GATEWAY_SILENT,
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
"""What is hit, and how."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, and heals again; several times over, it flaps."""

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
        """Faults that share one are the same thing going wrong, however they name two regions that are hit alike."""
        if self.kind.hits_both_ways and self.other < self.target:
            return self.kind, self.other, self.target
        return self.kind, self.target, self.other

    def spans(self) -> Iterator[tuple[int, int]]:
        """From when to when, each time."""
        for number in range(self.times):
            start_ns = self.at_ns + number * self.every_ns
            yield start_ns, start_ns + self.lasts_ns


@dataclass(frozen=True, slots=True)
class FaultPlaces:
    """Where faults can strike."""

    replicas: Sequence[str]
    gateways: Sequence[str]
    regions: Sequence[str]
    has_controller: bool = False
    has_pair: bool = False

    @property
    def controllers(self) -> list[str]:
        return [CONTROLLER, STANDBY] if self.has_pair else [CONTROLLER] if self.has_controller else []


def random_faults(rng: random.Random, places: FaultPlaces, *, count: int, until_ns: int) -> list[Fault]:
    """Some faults, all healed by `until_ns`; they may well overlap."""
    kinds = [kind for kind in FaultKind if _has_a_place(kind, places)]
    return [_random_fault(rng, places, rng.choice(kinds), until_ns) for _ in range(count)]


def _has_a_place(kind: FaultKind, places: FaultPlaces) -> bool:
    if (kind.needs_controller or kind is FaultKind.GATEWAY_SILENT) and not places.has_controller:
        return False
    if kind.needs_pair and not places.has_pair:
        return False
    if kind is FaultKind.STORE_LOST and places.has_pair:
        return False  # what a pair shares is lost for good, if at all: then nobody knows who led
    return not kind.joins_regions or len(places.regions) > 1


def _random_fault(rng: random.Random, places: FaultPlaces, kind: FaultKind, until_ns: int) -> Fault:
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
    return Fault(kind, at_ns, lasts_ns, target, other, _random_amount(rng, kind), times, every_ns)


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
