"""One gateway's link to its controllers: the stream, the kept snapshot, peers' reports of ownership, and the orders
that result. Where no controllers are named, it is inactive.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Never

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.app.precedence import Precedence
from gateway.config.sections import GatewayConfig
from gateway.control.announcing import announcement_of
from gateway.control.attachment import Attachment
from gateway.control.histories import HistoryOffer
from gateway.control.keeping import KeptSnapshot, SnapshotKeeper
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy, may_hold_records
from gateway.core.vocabulary import ControlVersion, GatewayId, Place, ReplicaId
from gateway.peers.heartbeat_receiver import HeartbeatReceiver
from mesh.clock import Clock
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    ControlSnapshot,
    ForwardsTo,
    GatewayLoad,
    Hello,
    LeftOut,
    Ownership,
    Question,
    QuestionAnswer,
    Report,
    WantedReplicas,
)
from mesh.faults import ConfigError
from mesh.supervisor import OwnedLoops, Supervisor
from mesh.totals import Totals
from mesh.transport import Transport
from mesh.values import REPLICA_ID_PATTERN, Address
from mesh.wire import TEXT_LENGTH_MAX

_SECOND_NS = 1_000_000_000


class ControlDependencies(Struct, frozen=True):
    """Parts of the gateway that its controller link reads."""

    heartbeat_receiver: HeartbeatReceiver
    """Receiver of peers' heartbeats."""
    open_requests: Callable[[], int]
    load: Callable[[], GatewayLoad]
    forwards: Callable[[], tuple[ForwardsTo, ...]]
    totals: Callable[[], Totals]
    told: Callable[[str], bytes]
    """JSON about a request or a decision, or about the latest decisions; empty where none is known."""
    left_out: Callable[[], dict[str, str]]
    """Granted replicas that cannot be served here, with reasons."""
    refused: Callable[[], dict[str, str]]
    """Granted replicas that cannot be served as they are described, with reasons."""
    abilities: tuple[str, ...]
    """Requirements of other gateways' pools that this gateway meets."""
    histories: Callable[[], list[HistoryOffer]]
    """Histories of the pools that this gateway serves."""
    take_history: Callable[[PoolHistory], None]
    """Takes the history of a pool from the gateway that served it before."""


class ControllerLink:
    """Gateway's side of the controller link. It speaks for the gateway on the stream, and supplies the link's
    metrics."""

    def __init__(
        self,
        config: GatewayConfig,
        transport: Transport,
        surroundings: ControlDependencies,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        regions: RegionTable | None,
    ) -> None:
        """`regions` is the operators' table of the region's policy at the start; None without a usable one."""
        self.precedence = Precedence(config, regions)
        self._regions = regions
        self._regions_changed = asyncio.Event()
        self.is_wanted = bool(config.control.controllers)
        self.keeper = SnapshotKeeper(config.state.folder, config.gateway_id, log)
        self.attachment = Attachment(config.control, transport, self, clock=clock, rng=random.Random(), log=log)
        self.heartbeat_receiver = surroundings.heartbeat_receiver
        self.transport = transport
        self._surroundings = surroundings
        self._wanted: Callable[[], tuple[WantedReplicas, ...]] = tuple
        self._http, self._peers = config.listen.http, config.listen.peers
        self._policy = closed_policy(config.place, "no policy read yet")
        self._clock = clock
        self._log = log
        self._taken_ns: int | None = None
        self.histories_withheld = ""
        """Reason why histories of pools may not be at the controller; empty while they may, or none is asked for."""

    def restore(self) -> None:
        """Begin with the snapshot kept over the restart, where it can still be served."""
        kept = self.keeper.restore() if self.is_wanted else None
        if kept is None:
            return
        version = kept.snapshot.version
        try:
            self.precedence.restore(kept.snapshot)
        except ConfigError as error:
            self.keeper.refuse(str(error))
            return
        self._taken_ns = kept.taken_ns
        self._log.info("cached_snapshot_applied", term=version.term, version=version.version)

    def run(self, loops: Supervisor, tenure: OwnedLoops, http: Address, peers: Address) -> None:
        """Start the loops, with the addresses that the gateway listens on. Only the process that owns the gateway
        speaks to its controller."""
        self._http, self._peers = http, peers
        loops.run("regions", self._follow_regions)
        if self.is_wanted:
            tenure.run("control", self.attachment.run)
            tenure.run("control_state", self.keeper.run)

    def follow_policy(self, policy: ResidencyPolicy) -> None:
        """Follow the region's own policy, not narrowed by a controller: announce it, and use its table of regions."""
        self._policy = policy
        if policy.regions is not None:  # a closed policy lets no request leave: known targets may stay
            self._regions = policy.regions
            self._regions_changed.set()
        self.attachment.changed()

    async def _follow_regions(self) -> Never:
        """Check peers and replicas against each new table. Until then the policy's rules already keep to it."""
        while True:
            self._regions_changed.clear()
            if self._regions is not None:
                await self.precedence.know(self._regions)
            await self._regions_changed.wait()

    async def reload(self, local: GatewayConfig) -> None:
        """Apply another region file. Raises ConfigError, and has changed nothing then."""
        await self.precedence.reload(local)
        self.attachment.changed()

    # Stream

    def attached(self) -> None:
        self.heartbeat_receiver.try_at_once()

    def hello(self) -> Hello:
        local = self.precedence.local
        announcement = announcement_of(local, self._http, self._peers, self._surroundings.abilities)
        return Hello(local.gateway_id, local.place, self.version, announcement, self._policy)

    def report(self) -> Report:
        around = self._surroundings
        return Report(
            tuple(self.heartbeat_receiver.heard()),
            around.open_requests(),
            load=around.load(),
            forwards=around.forwards(),
            wanted=self._wanted(),
            totals=around.totals(),
            left_out=tuple(_left_out(around.refused())),
        )

    def tell_wanted(self, wanted: Callable[[], tuple[WantedReplicas, ...]]) -> None:
        """Set the source of wanted replicas for reports."""
        self._wanted = wanted

    def answer(self, question: Question) -> QuestionAnswer:
        return QuestionAnswer(question.number, self._surroundings.told(question.wanted))

    def histories(self, place: Place) -> list[HistoryOffer]:
        """Histories of the pools that this gateway serves; none where the policy in force does not allow them at the
        controller's place."""
        snapshot = self.precedence.snapshot
        narrowing = None if snapshot is None else snapshot.narrowing
        policy = self._policy if narrowing is None else narrowed(self._policy, narrowing)
        verdict = may_hold_records(policy, place)
        self.histories_withheld = "" if verdict.allowed else verdict.why
        return self._surroundings.histories() if verdict.allowed else []

    def take_history(self, history: PoolHistory) -> None:
        self._surroundings.take_history(history)

    async def take(self, snapshot: ControlSnapshot) -> None:
        before = self.version
        await self.precedence.take(snapshot)
        if snapshot.version != before:
            self._log.info("snapshot_applied", term=snapshot.version.term, version=snapshot.version.version)
        self._taken_ns = self._clock.wall_ns()
        self.keeper.keep(KeptSnapshot(snapshot, self._taken_ns))

    # Peers' reports of ownership

    def is_news(self, version: ControlVersion) -> bool:
        """True if a peer should be asked for the ownership of this version. While the leading controller speaks to this
        gateway, peers are not asked; a newer term belongs to another controller, which may have deposed this gateway's
        controller unnoticed."""
        is_told = self._is_spoken_to and version.term <= self.version.term
        return self.is_wanted and self.precedence.would_be_news(version) and not is_told

    def learnt(self, peer: GatewayId, ownership: Ownership) -> None:
        """Take the ownership that a peer reported."""
        self._log.warning(
            "peer_reported_newer_ownership",
            peer=peer,
            term=ownership.version.term,
            version=ownership.version.version,
        )
        self.precedence.hear(ownership)

    @property
    def _is_spoken_to(self) -> bool:
        """True while the attached controller has spoken within half of `silence_max`, so that it would have reported
        newer owners itself. A rejected snapshot makes this false: the owners that it names are unknown here."""
        silent_ns = self.attachment.silent_ns
        half_ns = self.precedence.local.control.silence_max_ns // 2
        is_understood = not self.attachment.tallies.last_rejection
        return self.is_attached and is_understood and silent_ns is not None and silent_ns <= half_ns

    # State for operators

    @property
    def is_attached(self) -> bool:
        return self.attachment.controller is not None

    @property
    def version(self) -> ControlVersion:
        return self.precedence.version

    @property
    def snapshot_age_s(self) -> float | None:
        return None if self._taken_ns is None else max(self._clock.wall_ns() - self._taken_ns, 0) / _SECOND_NS

    @property
    def is_kept(self) -> bool:
        return not self.keeper.fault

    @property
    def taken(self) -> int:
        return self.attachment.tallies.taken

    @property
    def rejected(self) -> int:
        return self.attachment.tallies.rejected

    @property
    def left_out(self) -> int:
        return len(self._surroundings.left_out())

    @property
    def away(self) -> int:
        return len(self.precedence.away)

    def describe(self) -> dict[str, object] | None:
        """State of the link; None where no controllers are named."""
        if not self.is_wanted:
            return None
        attachment, hearsay = self.attachment, self.precedence.hearsay.version
        silent_ns = attachment.silent_ns
        return {
            "attached": self.is_attached,
            "controller": "" if attachment.controller is None else str(attachment.controller),
            "silent_s": None if silent_ns is None else silent_ns / _SECOND_NS,
            "last_loss": attachment.tallies.last_loss,
            "term": self.version.term,
            "version": self.version.version,
            "snapshot_age_s": self.snapshot_age_s,
            "not_kept_reason": self.keeper.fault,
            "last_rejection": attachment.tallies.last_rejection,
            "histories_withheld": self.histories_withheld,
            "places_refused": dict(self.precedence.orders.misplaced),
            "left_out": dict(self._surroundings.left_out()),
            "away": sorted(self.precedence.away),
            "heard_of": {"term": hearsay.term, "version": hearsay.version},
        }


def _left_out(refused: Mapping[str, str]) -> Iterator[LeftOut]:
    """Refused replicas by the id that their home announces, which all ranks of an engine share. A grant that could not
    be read has no id, and is not reported."""
    reasons = {name.partition("@")[0]: why for name, why in refused.items()}
    for name, why in reasons.items():
        if REPLICA_ID_PATTERN.fullmatch(name) is not None:
            yield LeftOut(ReplicaId(name), why[:TEXT_LENGTH_MAX])
