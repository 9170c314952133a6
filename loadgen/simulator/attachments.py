"""Gateway's end of the control stream in a simulation: it sends a hello, receives snapshots, keeps the latest on its
disk, and hears from peers that serve by a newer one.

It follows the rules of a real gateway (`docs/decisions/0006-a-controller-beside-the-road.md`) and decides nothing else.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Place,
    PoolName,
    RegionName,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
)
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.gateways import SimGateway
from loadgen.simulator.network import Network, NetworkLine
from loadgen.simulator.observers import ControlObserver
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import ControlSnapshot, LeftOut, PeerHeard, ReplicaGrant, ReplicaOwner
from mesh.naming.tree import RecordTree

_NONE = ControlVersion()
_DISK_MAX = 8
"""Number of snapshots that a disk keeps, so that a fault can bring an older one back."""
ASK_TIMEOUT_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SimHello:
    """First message of a gateway on its stream."""

    gateway_id: GatewayId
    place: Place
    replicas: tuple[ReplicaSpec, ...]
    taken: ControlVersion
    policy: ResidencyPolicy


class Stream(Protocol):
    """Far end of a control stream."""

    def said_hello(self, hello: SimHello) -> None: ...

    def reported(self, peers: tuple[PeerHeard, ...], left_out: tuple[LeftOut, ...]) -> None: ...

    def accepted_policy(self, policy: ResidencyPolicy) -> None: ...

    def history_came(self, history: PoolHistory) -> None: ...

    def broke(self, detail: str) -> None: ...


class StreamAcceptor(Protocol):
    """Interface of a controller that accepts gateways' streams."""

    @property
    def region(self) -> RegionName: ...

    def answer(self, near: SimAttachment, life: int, line: NetworkLine) -> Stream: ...


@dataclass(frozen=True, slots=True)
class ControlTimes:
    """Intervals and time-outs of the control stream."""

    report_interval_ns: int
    stream_timeout_ns: int
    redial_ns: int
    peer_timeout_ns: int
    """Silence after which a peer counts as unreachable."""
    history_interval_ns: int | None = None
    """Shortest interval at which the history of a pool is sent; None: histories do not travel."""


@dataclass(frozen=True, slots=True)
class AttachmentEnvironment:
    """Shared environment of all attachments of a world."""

    peers: dict[GatewayId, SimAttachment]
    """Attachments by gateway."""
    gateways: Mapping[GatewayId, SimGateway]
    specs: dict[ReplicaId, ReplicaSpec]
    boards: tuple[StreamAcceptor, ...]
    """Controllers to dial, in turn: after a refusal or a loss the next one is dialled."""
    agenda: Agenda
    network: Network
    times: ControlTimes
    observers: tuple[ControlObserver, ...]
    rng: random.Random
    refusing_share: float = 0.0
    """Share of other homes' pools and replicas that a process leaves out."""


def served(
    own: Iterable[ReplicaId], gateway_id: GatewayId, snapshot: ControlSnapshot | None, disowned: Iterable[ReplicaId]
) -> tuple[ReplicaId, ...]:
    """Replicas that a gateway serves: those its snapshot grants, and its own that are not away; never one it knows to
    be another gateway's."""
    said = () if snapshot is None else snapshot.away
    away = {each.replica_id for each in said if each.owner != gateway_id}
    granted = [] if snapshot is None else [ReplicaId(each.document) for each in snapshot.replicas]
    not_ours = {*away, *disowned}
    return tuple(each for each in dict.fromkeys([*granted, *own]) if each not in not_ours)


class SimAttachment:
    """Attachment of one gateway. The disk outlives the process; all other state is lost with it."""

    def __init__(self, gateway: SimGateway, ties: AttachmentEnvironment) -> None:
        self.gateway = gateway
        self.is_up = False
        self.delay_ns = 0
        """Fault: delay of snapshots."""
        self.loss_share = 0.0
        """Fault: share of snapshots with which the stream breaks."""
        self.told = 0
        """Number of times that a peer has told it the owners of replicas."""
        self._refusing_share = ties.refusing_share
        self._refuses: dict[tuple[GatewayId, str], bool] = {}
        """True for what this process leaves out, by home and by name of a pool or of a single replica."""
        self._rng = ties.rng
        self._peers = ties.peers
        self._specs = ties.specs
        self._pool_homes = {
            spec.pool: each.gateway_id
            for each in ties.gateways.values()
            for spec in each.spec.replicas
            if spec.role is not ReplicaRole.UNIFIED
        }
        self._boards = ties.boards
        self._turn = 0
        self._agenda = ties.agenda
        self._network = ties.network
        self._times = ties.times
        self._observers = ties.observers
        self._life = 0
        self._policy = gateway.spec.policy
        self._disk: deque[ControlSnapshot] = deque(maxlen=_DISK_MAX)
        """Snapshots kept on disk; the process starts from the last one."""
        self._snapshot: ControlSnapshot | None = None
        self._told_version = _NONE
        """Newest version of which a peer has told the owners."""
        self._told_away: dict[ReplicaId, GatewayId] = {}
        self._asking_until_ns: dict[GatewayId, int] = {}
        """End of the wait for each peer that was asked: one whose answer is lost does not delay the others, as in
        `gateway.peers.ownership`."""
        self._stream: Stream | None = None
        self._line: NetworkLine | None = None
        self._histories_sent: dict[PoolName, tuple[int, int]] = {}
        """Requests in the last history of each pool on this stream, and its time."""
        self._stream_heard_ns = 0
        self._has_spoken = False
        """True once the controller has sent a message on the open stream."""
        self._heard_ns: dict[GatewayId, int] = {}
        self._broken: set[GatewayId] = set()

    @property
    def gateway_id(self) -> GatewayId:
        return self.gateway.gateway_id

    @property
    def region(self) -> RegionName:
        return self.gateway.region

    @property
    def taken(self) -> ControlVersion:
        return _NONE if self._snapshot is None else self._snapshot.version

    @property
    def records(self) -> RecordTree | None:
        """Record tree from which it answers, as one of the zone's name servers."""
        return None if self._snapshot is None or not self.is_up else self._snapshot.records

    # Life of the process

    def began(self) -> tuple[ReplicaSpec, ...]:
        self._life += 1
        self.is_up = True
        self._snapshot = self._disk[-1] if self._disk else None
        self._told_version, self._told_away, self._asking_until_ns = _NONE, {}, {}
        self._heard_ns, self._broken, self._refuses = {}, set(), {}
        self._note_taken()
        self._dial(self._life)
        self._report(self._life)
        return self._specs_now()

    def ended(self, is_told: bool) -> None:
        self._life += 1
        self.is_up = False
        line, self._line, self._stream = self._line, None, None
        if line is None:
            return
        if is_told:
            line.close_near("the gateway's connection was reset")
        else:
            self._network.fall_silent(line)

    def loses_this(self) -> bool:
        return self.loss_share > 0 and self._rng.random() < self.loss_share

    def age_disk(self, by: int) -> None:
        """Fault: lose the latest snapshots on the disk, while an older one remains."""
        for _ in range(min(by, len(self._disk) - 1)):
            self._disk.pop()

    # Control stream

    def _dial(self, life: int) -> None:
        if life != self._life or self._line is not None:
            return

        def far_broke(detail: str) -> None:
            stream.broke(detail)

        board = self._boards[self._turn % len(self._boards)]
        self._turn += 1
        line = self._network.connect(self.region, board.region, lambda _: self._lost(life), far_broke)
        stream = board.answer(self, life, line)
        self._line, self._stream, self._stream_heard_ns = line, stream, self._agenda.now_ns
        self._histories_sent = {}
        self._has_spoken = False
        spec = self.gateway.spec
        line.to_far(stream.said_hello, SimHello(self.gateway_id, spec.place, spec.replicas, self.taken, self._policy))

    def _lost(self, life: int) -> None:
        if life == self._life:
            self._line = self._stream = None
            self._agenda.after(self._times.redial_ns, self._dial, life)

    def policy_changed(self, policy: ResidencyPolicy) -> None:
        self._policy = policy
        if self._line is not None and self._stream is not None:
            self._line.to_far(self._stream.accepted_policy, policy)

    def _report(self, life: int) -> None:
        if life != self._life:
            return
        if self._line is not None and self._stream is not None:
            self._line.to_far(self._stream.reported, self._peers_heard(), tuple(self._left_out()))
            self._send_histories(self._line, self._stream)
            if self._agenda.now_ns - self._stream_heard_ns > self._times.stream_timeout_ns:
                self._line.close_near("the controller fell silent")
                self._lost(life)
        self._agenda.after(self._times.report_interval_ns, self._report, life)

    def _send_histories(self, line: NetworkLine, stream: Stream) -> None:
        """Send the histories of the pools that it serves: each at once on a new stream, and then if it is new and the
        interval is over."""
        interval_ns, now_ns = self._times.history_interval_ns, self._agenda.now_ns
        if interval_ns is None:
            return
        histories = {PoolName(each.pool): each for each in self.gateway.histories(self._pool_homes)}
        self._histories_sent = {pool: sent for pool, sent in self._histories_sent.items() if pool in histories}
        for pool, history in histories.items():
            added, sent_ns = self._histories_sent.get(pool, (0, now_ns - interval_ns))
            if history.added != added and now_ns >= sent_ns + interval_ns:
                self._histories_sent[pool] = history.added, now_ns
                line.to_far(stream.history_came, history)

    def history_came(self, life: int, history: PoolHistory) -> None:
        if life == self._life:
            self._note_spoken()
            self.gateway.history_came(history)

    def _peers_heard(self) -> tuple[PeerHeard, ...]:
        return tuple(self._peer_heard(each) for each in self._peers if each != self.gateway_id)

    def _peer_heard(self, peer: GatewayId) -> PeerHeard:
        heard_ns = self._heard_ns.get(peer)
        ago_ns = None if heard_ns is None else self._agenda.now_ns - heard_ns
        is_gone = ago_ns is not None and ago_ns > self._times.peer_timeout_ns
        rtt_ns = self._network.round_trip_ns(self.region, self._peers[peer].region)
        return PeerHeard(peer, ago_ns, peer in self._broken or is_gone, None if ago_ns is None else rtt_ns)

    # Snapshots

    def is_alive(self, life: int, line: NetworkLine) -> None:
        if life == self._life and line is self._line:
            self._note_spoken()

    def snapshot_came(self, life: int, snapshot: ControlSnapshot) -> None:
        """Apply a snapshot, unless a delay has made it older than the one in use."""
        if life != self._life:
            return
        self._note_spoken()
        if self.taken.is_newer_than(snapshot.version):
            return
        self._snapshot = snapshot
        self._disk.append(snapshot)
        self._note_taken()
        self.gateway.assign(self._specs_now())

    def _note_spoken(self) -> None:
        self._stream_heard_ns, self._has_spoken = self._agenda.now_ns, True

    @property
    def _is_spoken_to(self) -> bool:
        """True if the attached controller has just sent a message: it would have sent newer owners itself."""
        silent_ns = self._agenda.now_ns - self._stream_heard_ns
        return self._line is not None and self._has_spoken and silent_ns <= self._times.stream_timeout_ns // 2

    def _note_taken(self) -> None:
        for observer in self._observers:
            observer.on_snapshot_taken(self._agenda.now_ns, self.gateway_id, self.taken)

    def _specs_now(self) -> tuple[ReplicaSpec, ...]:
        own = (each.replica_id for each in self.gateway.spec.replicas)
        replicas = served(own, self.gateway_id, self._snapshot, self._disowned())
        granted = () if self._snapshot is None else self._snapshot.replicas
        accepts = {ReplicaId(each.document): each.accepts for each in granted}
        left_out = {each.replica_id for each in self._left_out()}
        return tuple(replace(self._specs[each], accepts=accepts.get(each)) for each in replicas if each not in left_out)

    def _left_out(self) -> Iterator[LeftOut]:
        """Granted replicas of other homes that this process cannot serve."""
        for grant in () if self._snapshot is None or not self._refusing_share else self._snapshot.replicas:
            if grant.home != self.gateway_id and self._is_refused(grant):
                yield LeftOut(ReplicaId(grant.document), "its key is not here")

    def _is_refused(self, grant: ReplicaGrant) -> bool:
        spec = self._specs[ReplicaId(grant.document)]
        unit = grant.home, str(spec.replica_id if spec.role is ReplicaRole.UNIFIED else spec.pool)
        if unit not in self._refuses:
            self._refuses[unit] = self._rng.random() < self._refusing_share
        return self._refuses[unit]

    # Messages of peers

    def heard(self, peer: GatewayId, version: ControlVersion) -> None:
        if not self.is_up:
            return
        self._heard_ns[peer] = self._agenda.now_ns
        self._broken.discard(peer)
        if not version.is_newer_than(self.taken):
            return
        for observer in self._observers:
            observer.on_newer_heard(self._agenda.now_ns, self.gateway_id, peer, version)
        if self._is_spoken_to and version.term <= self.taken.term:
            return
        if version.is_newer_than(self._told_version) and self._agenda.now_ns >= self._asking_until_ns.get(peer, -1):
            self._asking_until_ns[peer] = self._agenda.now_ns + ASK_TIMEOUT_NS
            other = self._peers[peer]
            self._network.datagram(self.region, other.region, other.asked_for_owners, self, self._life)

    def peer_gone(self, gateway_id: GatewayId) -> None:
        self._broken.add(gateway_id)

    def asked_for_owners(self, asker: SimAttachment, life: int) -> None:
        if self.is_up and self._snapshot is not None:
            snapshot = self._snapshot
            self._network.datagram(self.region, asker.region, asker.owners_told, life, snapshot.version, snapshot.away)

    def owners_told(self, life: int, version: ControlVersion, away: tuple[ReplicaOwner, ...]) -> None:
        """Take over owners that a peer with a newer snapshot reports: they can exclude replicas of the gateway's
        snapshot, not add to them."""
        if life != self._life:
            return
        self._asking_until_ns = {}
        if version.is_newer_than(self.taken) and version.is_newer_than(self._told_version):
            self.told += 1
            self._told_version, self._told_away = version, {each.replica_id: each.owner for each in away}
            self.gateway.assign(self._specs_now())

    def _disowned(self) -> list[ReplicaId]:
        """Replicas that other gateways own by what peers said, if that is newer than the gateway's snapshot. An adopted
        replica that peers no longer list as away is home again."""
        if not self._told_version.is_newer_than(self.taken):
            return []
        own = [each.replica_id for each in self.gateway.spec.replicas]
        granted = [] if self._snapshot is None else self._snapshot.replicas
        homes = dict.fromkeys(own, self.gateway_id)
        homes |= {ReplicaId(each.document): each.home for each in granted}
        return [each for each, home in homes.items() if self._told_away.get(each, home) != self.gateway_id]
