"""Drives the very `ControllerCore` in virtual time: streams, probes, a store that takes its time, and its own clock.

It does what the live controller's driver does, in the same order: what has to be kept is written down before any
gateway is told. It decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controller.core import events
from controller.core.controller_core import ControllerCore
from controller.core.effects import Assign, Effect, KeepOwners, KeepPolicy, PublishRecords, TellCondition
from controller.core.events import Event
from controller.core.vocabulary import Condition, GatewayEntry, HeardPeer, ReplicaEntry
from gateway.core.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, Place, PlaceRule, RegionName, ReplicaId
from gateway.ground.control.vocabulary import PeerGrant, PeerHeard, ReplicaGrant, ReplicaOwner, Snapshot
from gateway.ground.naming.tree import RecordTree
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.attachments import Attachment, SimHello
from loadgen.simulator.control_sections import ControllerSection
from loadgen.simulator.faults import CONTROLLER
from loadgen.simulator.network import Line, Network
from loadgen.simulator.observers import ControlObserver

REGION = RegionName(CONTROLLER)
"""Where it stands, apart from the region beside it, so that it can be cut off from that too."""


@dataclass(slots=True)
class _Store:
    """What outlives the process."""

    term: int = 0
    revision: int = 0
    gateways: dict[GatewayId, GatewayEntry] = field(default_factory=dict)
    replicas: dict[ReplicaId, ReplicaEntry] = field(default_factory=dict)
    owners_version: int = 0
    owners: dict[ReplicaId, GatewayId] = field(default_factory=dict)
    policies: dict[RegionName, ResidencyPolicy] = field(default_factory=dict)
    down: set[GatewayId] = field(default_factory=set)


class _Stream:
    """The controller's end of one gateway's stream."""

    def __init__(self, controller: SimController, near: Attachment, near_life: int, line: Line) -> None:
        self.near = near
        self.near_life = near_life
        self.line = line
        self.heard_ns = controller.agenda.now_ns
        self._controller = controller

    def said_hello(self, hello: SimHello) -> None:
        self._controller.attached(self, hello)

    def reported(self, peers: tuple[PeerHeard, ...]) -> None:
        self._controller.reported(self, peers)

    def accepted_policy(self, policy: ResidencyPolicy) -> None:
        self._controller.policy_accepted(self, policy)

    def broke(self, detail: str) -> None:
        self._controller.stream_lost(self, detail)


class SimController:
    """One controller process and its store."""

    def __init__(
        self, section: ControllerSection, agenda: Agenda, network: Network, observers: Iterable[ControlObserver]
    ) -> None:
        self.agenda = agenda
        self.core: ControllerCore | None = None
        self._section = section
        self._config = section.as_config()
        self._network = network
        self._observers: Sequence[ControlObserver] = tuple(observers)
        self._store = _Store()
        self._attachments: dict[GatewayId, Attachment] = {}
        self._streams: dict[GatewayId, _Stream] = {}
        self._down: set[GatewayId] = set()
        """Of whom it is written down, or about to be."""
        self._life = 0
        self._ahead_ns = 0
        """Its clock, before the world's."""
        self._inbox: deque[Event] = deque()
        self._is_pumping = False
        self._written_ns = 0
        """When everything that is being written down is."""
        self._wake_ns: int | None = None

    @property
    def region(self) -> RegionName:
        return REGION

    @property
    def is_up(self) -> bool:
        return self.core is not None

    @property
    def records(self) -> RecordTree | None:
        """What it answers from, as one of the zone's name servers."""
        return None if self.core is None else self.core.tree

    def know(self, attachments: dict[GatewayId, Attachment]) -> None:
        """The way to each gateway's health endpoint."""
        self._attachments = attachments

    # A life

    def start(self) -> None:
        if self.core is not None:
            return
        store = self._store
        self._life += 1
        store.term += 1
        self.core = ControllerCore()
        for observer in self._observers:
            observer.on_controller_start(self.agenda.now_ns, store.term)
        self.tell(events.ConfigApplied(self._config))
        policies = tuple(store.policies.values())
        self._down = set(store.down)
        down = tuple(sorted(store.down))
        self.tell(events.StateRestored(store.owners_version, tuple(store.owners.items()), policies, down))
        self._tell_registry()
        self._look_after(self._life)

    def crash(self) -> None:
        if self.core is None:
            return
        self.core = None
        self._life += 1
        self._inbox.clear()
        self._wake_ns = None
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.line.close_far("the controller's connection was reset")

    def lose_store(self) -> None:
        self.crash()
        self._store = _Store()

    def jump(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * 1e9)

    # Events in, effects out

    def tell(self, event: Event) -> None:
        if self.core is None:
            return
        self._inbox.append(event)
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._inbox:
                self._step(self.core, self._inbox.popleft())
        finally:
            self._is_pumping = False
        self._arm()

    def _step(self, core: ControllerCore, event: Event) -> None:
        clock_ns = self._now_ns()
        effects = core.handle(event, clock_ns)
        for observer in self._observers:
            observer.on_controller_step(self.agenda.now_ns, clock_ns, event, effects)
        kept = [each for each in effects if self._is_kept(each)]
        if kept:
            self._written_ns = max(self._written_ns, self.agenda.now_ns + self._section.store_delay)
        again = [each.gateway_id for each in effects if isinstance(each, Assign)]
        if kept or again:
            at_ns = max(self._written_ns, self.agenda.now_ns)
            self.agenda.at(at_ns, self._written, self._life, tuple(kept), tuple(again))

    def _is_kept(self, effect: Effect) -> bool:
        """As the live one does it: one that returns is down until it is up."""
        if not isinstance(effect, TellCondition):
            return isinstance(effect, KeepOwners | KeepPolicy | PublishRecords)
        was_down = effect.gateway_id in self._down
        if effect.condition is Condition.DOWN:
            self._down.add(effect.gateway_id)
            return not was_down
        if effect.condition is Condition.UP:
            self._down.discard(effect.gateway_id)
            return was_down
        return False

    def _written(self, life: int, kept: tuple[Effect, ...], again: tuple[GatewayId, ...]) -> None:
        """It is on the disk: now it may be told."""
        if life != self._life:
            return
        for effect in kept:
            self._write(effect)
        self._store.revision += bool(kept)
        for gateway_id in list(self._streams) if kept else again:
            self._send_snapshot(gateway_id)

    def _write(self, effect: Effect) -> None:
        store = self._store
        if isinstance(effect, KeepOwners):
            store.owners_version = effect.version
            store.owners |= dict(effect.owners)
            for orphan in effect.orphans:
                store.owners.pop(orphan, None)
        elif isinstance(effect, KeepPolicy):
            store.policies[effect.policy.place.region] = effect.policy
        elif isinstance(effect, TellCondition):
            if effect.condition is Condition.DOWN:
                store.down.add(effect.gateway_id)
            else:
                store.down.discard(effect.gateway_id)

    def _now_ns(self) -> int:
        return self.agenda.now_ns + self._ahead_ns

    def _arm(self) -> None:
        wake_ns = None if self.core is None else self.core.next_wakeup_ns()
        if wake_ns is None:
            return
        at_ns = max(wake_ns - self._ahead_ns, self.agenda.now_ns)
        if self._wake_ns is None or at_ns < self._wake_ns:
            self._wake_ns = at_ns
            self.agenda.at(at_ns, self._wake, self._life, at_ns)

    def _wake(self, life: int, wake_ns: int) -> None:
        if life != self._life or wake_ns != self._wake_ns or self.core is None:
            return
        self._wake_ns = None
        next_ns = self.core.next_wakeup_ns()
        if next_ns is not None and next_ns <= self._now_ns():
            self.tell(events.TimePassed())
        else:
            self._arm()

    # Streams

    def answer(self, near: Attachment, life: int, line: Line) -> _Stream:
        return _Stream(self, near, life, line)

    def attached(self, stream: _Stream, hello: SimHello) -> None:
        if self.core is None:
            stream.line.close_far("connection refused")
            return
        before = self._streams.pop(hello.gateway_id, None)
        if before is not None:
            before.line.close_far("another stream of this gateway came")
        self._streams[hello.gateway_id] = stream
        stream.heard_ns = self.agenda.now_ns
        if hello.taken.is_newer_than(self._version()):  # our store was lost, or is an old one
            self._store.term = hello.taken.term + 1
        self._register(hello)
        self.tell(events.GatewayConnected(hello.gateway_id, hello.policy))

    def reported(self, stream: _Stream, peers: tuple[PeerHeard, ...]) -> None:
        if not self._is_ours(stream):
            return
        stream.heard_ns = self.agenda.now_ns
        now_ns = self._now_ns()
        said = tuple(
            HeardPeer(
                each.gateway_id,
                None if each.heard_ago_ns is None else now_ns - each.heard_ago_ns,
                each.is_broken,
                each.rtt_ns,
            )
            for each in peers
        )
        self.tell(events.PeersHeard(stream.near.gateway_id, said))

    def policy_accepted(self, stream: _Stream, policy: ResidencyPolicy) -> None:
        if self._is_ours(stream):
            self.tell(events.PolicyAccepted(stream.near.gateway_id, policy))

    def stream_lost(self, stream: _Stream, detail: str) -> None:
        if self._is_ours(stream):
            del self._streams[stream.near.gateway_id]
            self.tell(events.GatewayDisconnected(stream.near.gateway_id, detail))

    def _is_ours(self, stream: _Stream) -> bool:
        return self._streams.get(stream.near.gateway_id) is stream

    def _register(self, hello: SimHello) -> None:
        """Nobody has to write a region file twice."""
        entry = GatewayEntry(hello.gateway_id, hello.place, (str(hello.gateway_id),))
        store = self._store
        if store.gateways.get(hello.gateway_id) != entry:
            store.gateways[hello.gateway_id] = entry
            store.replicas |= {each: ReplicaEntry(each, hello.gateway_id) for each in hello.replicas}
            self._tell_registry()

    def _tell_registry(self) -> None:
        store = self._store
        self.tell(events.RegistryApplied(tuple(store.gateways.values()), tuple(store.replicas.values())))

    def _version(self) -> ControlVersion:
        return ControlVersion(self._store.term, self._store.revision)

    # Snapshots

    def _send_snapshot(self, gateway_id: GatewayId) -> None:
        stream = self._streams.get(gateway_id)
        if stream is None or self.core is None:
            return
        snapshot = self._snapshot_for(gateway_id, self.core)
        for observer in self._observers:
            observer.on_snapshot_sent(self.agenda.now_ns, snapshot)
        near = stream.near
        if near.loses_this():
            stream.line.close_far("the stream broke")
            self.stream_lost(stream, "the stream broke")
        elif near.delay_ns:
            self.agenda.after(near.delay_ns, near.snapshot_came, stream.near_life, snapshot)
        else:
            stream.line.to_near(near.snapshot_came, stream.near_life, snapshot)

    def _snapshot_for(self, gateway_id: GatewayId, core: ControllerCore) -> Snapshot:
        store = self._store
        replicas = tuple(
            self._grant(core.replicas[replica_id], gateway_id)
            for replica_id, owner in store.owners.items()
            if owner == gateway_id and replica_id in core.replicas
        )
        away = tuple(
            ReplicaOwner(replica_id, core.replicas[replica_id].home, owner)
            for replica_id, owner in store.owners.items()
            if replica_id in core.replicas and core.replicas[replica_id].home != owner
        )
        peers = tuple(
            PeerGrant(each.gateway_id, each.place, each.addresses[0])
            for each in store.gateways.values()
            if each.gateway_id != gateway_id
        )
        return Snapshot(self._version(), gateway_id, replicas, away, peers, records=core.tree)

    def _grant(self, replica: ReplicaEntry, to: GatewayId) -> ReplicaGrant:
        place = self._place(replica.home)
        accepts = None if replica.home == to else self._accepts(place)
        return ReplicaGrant(str(replica.replica_id), replica.home, place, accepts)

    def _place(self, gateway_id: GatewayId) -> Place:
        return self._store.gateways[gateway_id].place

    def _accepts(self, home: Place) -> PlaceRule:
        policy = self._store.policies.get(home.region)
        if policy is None or policy.closed_reason:
            return PlaceRule()
        return PlaceRule(
            policy.accept.jurisdictions, policy.accept.regions | {home.region}, policy.accept.denied_regions
        )

    # Health

    def _look_after(self, life: int) -> None:
        if life != self._life:
            return
        for stream in list(self._streams.values()):
            if self.agenda.now_ns - stream.heard_ns > self._section.stream_timeout:
                stream.line.close_far("the gateway fell silent")
                self.stream_lost(stream, "it fell silent")
            else:
                stream.line.to_near(stream.near.is_alive, stream.near_life, stream.line)
        for gateway_id in self._store.gateways:
            self._probe(life, self._attachments[gateway_id])
        self.agenda.after(self._section.probe_interval, self._look_after, life)

    def _probe(self, life: int, target: Attachment) -> None:
        answers: list[bool] = []
        self._network.datagram(REGION, target.region, self._probed, life, target, answers)
        self.agenda.after(self._section.probe_timeout, self._gave_up, life, target.gateway_id, answers)

    def _probed(self, life: int, target: Attachment, answers: list[bool]) -> None:
        """At the gateway's host; one that is gone says nothing."""
        if not target.gateway.is_silent:
            self._network.datagram(
                target.region, REGION, self._answered, life, target.gateway_id, target.gateway.is_up, answers
            )

    def _answered(self, life: int, gateway_id: GatewayId, is_up: bool, answers: list[bool]) -> None:
        if life == self._life and not answers:
            answers.append(is_up)
            detail = "" if is_up else "connection refused"
            self.tell(events.GatewayProbed(gateway_id, is_up, detail, was_refused=not is_up))

    def _gave_up(self, life: int, gateway_id: GatewayId, answers: list[bool]) -> None:
        if life == self._life and not answers:
            answers.append(False)
            self.tell(events.GatewayProbed(gateway_id, False, "no answer in time"))
