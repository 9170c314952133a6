"""Driver of the production `ControllerCore` in virtual time: streams, probes, a store with a write delay, and a clock
of its own.

It performs effects in the same order as the live controller's driver: state is written to the store before any gateway
is told. It decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from controller.core import events
from controller.core.controller_core import ControllerCore
from controller.core.effects import Assign, Effect, KeepOwners, KeepPolicy, PublishRecords, TellCondition
from controller.core.events import Event
from controller.core.pool_histories import HistoryId, PoolHistories, PoolMesh
from controller.core.vocabulary import Condition, GatewayEntry, HeardPeer, ReplicaEntry
from controller.store.lease_watch import LeaseMark, LeaseWatch, lease_end_ns
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Place,
    PlaceRule,
    RegionName,
    ReplicaRole,
    ReplicaSpec,
)
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.attachments import SimAttachment, SimHello
from loadgen.simulator.control_sections import ControllerSection
from loadgen.simulator.faults import CONTROLLER
from loadgen.simulator.network import Network, NetworkLine
from loadgen.simulator.observers import ControlObserver
from loadgen.simulator.shared_store import KeptDocument, SharedStore
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import ControlSnapshot, LeftOut, PeerGrant, PeerHeard, ReplicaGrant, ReplicaOwner
from mesh.naming.tree import RecordTree

REGION = RegionName(CONTROLLER)
"""Region of the first controller, separate from the region beside it, so that it can be cut off from that too."""


_WRITE_AGAIN_NS = 200_000_000
"""Nanoseconds until a failed write is retried."""


class _Stream:
    """Controller's end of one gateway's stream."""

    def __init__(self, controller: SimController, near: SimAttachment, near_life: int, line: NetworkLine) -> None:
        self.near = near
        self.near_life = near_life
        self.line = line
        self.heard_ns = controller.agenda.now_ns
        self.histories: set[HistoryId] = set()
        """Histories of pools that this stream has brought or taken."""
        self._controller = controller

    def said_hello(self, hello: SimHello) -> None:
        self._controller.attached(self, hello)

    def reported(self, peers: tuple[PeerHeard, ...], left_out: tuple[LeftOut, ...]) -> None:
        self._controller.reported(self, peers, left_out)

    def accepted_policy(self, policy: ResidencyPolicy) -> None:
        self._controller.policy_accepted(self, policy)

    def history_came(self, history: PoolHistory) -> None:
        self._controller.history_came(self, history)

    def broke(self, detail: str) -> None:
        self._controller.stream_lost(self, detail)


class SimController:
    """One controller, alone or one of a pair on one store. Alone it leads as soon as it runs, and cannot be deposed."""

    def __init__(
        self,
        section: ControllerSection,
        agenda: Agenda,
        network: Network,
        observers: Iterable[ControlObserver],
        *,
        name: str = CONTROLLER,
        shared: SharedStore | None = None,
    ) -> None:
        """`shared`: the store of a pair; None for a controller alone."""
        self.agenda = agenda
        self.core: ControllerCore | None = None
        self.name = name
        self._section = section
        self._config = section.as_config()
        self._network = network
        self._observers: Sequence[ControlObserver] = tuple(observers)
        self._is_one_of_two = shared is not None
        self._shared = shared or SharedStore()
        self._store = self._shared.kept
        """State of the store as this controller knows it: for one of a pair, a copy read at its start, plus its own
        writes."""
        self._attachments: dict[GatewayId, SimAttachment] = {}
        self._streams: dict[GatewayId, _Stream] = {}
        self._histories = PoolHistories(None)
        self._down: set[GatewayId] = set()
        """Gateways whose DOWN condition is in the store or about to be written."""
        self._life = 0
        self._ahead_ns = 0
        """Nanoseconds by which its clock is ahead of the world's."""
        self._inbox: deque[Event] = deque()
        self._is_pumping = False
        self._written_ns = 0
        """Time at which all writes in progress will be done."""
        self._wake_ns: int | None = None
        self._is_running = False
        """True while it leads or stands by."""
        self._is_struck = False
        """Fault: the process does not run until the fault is over."""
        self._is_stopped = False
        """Fault: the process is suspended for a while, without noticing."""
        self._late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """Calls that came due while it was suspended."""
        self._is_cut = False
        """Fault: the store cannot be reached."""
        self._unwritten: deque[tuple[tuple[Effect, ...], tuple[GatewayId, ...]]] = deque()
        self._watch = LeaseWatch()
        self._lease_ends_ns = 0

    @property
    def region(self) -> RegionName:
        return RegionName(self.name)

    @property
    def _own_place(self) -> Place | None:
        """Place of the gateways that it stands beside."""
        beside = self._section.region if self.name == CONTROLLER else self._section.standby
        places = (each.gateway.spec.place for each in self._attachments.values())
        return next((each for each in places if each.region == beside), None)

    @property
    def _process(self) -> str:
        """Name of this life's process, and so the key under which it holds the store."""
        return f"{self.name}/{self._life}"

    @property
    def is_up(self) -> bool:
        return self.core is not None

    @property
    def records(self) -> RecordTree | None:
        """Record tree from which it answers, as one of the zone's name servers."""
        return None if self.core is None else self.core.tree

    def know(self, attachments: dict[GatewayId, SimAttachment]) -> None:
        """Set the gateways' attachments, to which health probes go."""
        self._attachments = attachments

    # Life of the process

    def start(self) -> None:
        self._is_struck = False
        self._run()

    def _run(self) -> None:
        if self._is_running or self._is_struck:
            return
        self._is_running = True
        self._life += 1
        if self._is_one_of_two:
            self._watch = LeaseWatch()
            self._look(self._life)
            return
        self._shared.take(self._shared.mark, self._process)
        self._begin()

    def _begin(self) -> None:
        store = self._store
        self.core = ControllerCore()
        self._histories = PoolHistories(self._own_place)
        for observer in self._observers:
            observer.on_store_taken(self.agenda.now_ns, self._process)
            observer.on_controller_start(self.agenda.now_ns, store.term)
        self.tell(events.ControllerConfigApplied(self._config))
        policies = tuple(store.policies.values())
        self._down = set(store.down)
        down = tuple(sorted(store.down))
        self.tell(events.StateRestored(store.owners_version, tuple(store.owners.items()), policies, down))
        self._tell_registry()
        self._look_after(self._life)

    def crash(self) -> None:
        self._is_struck = True
        self._end("the controller's connection was reset")

    def _end(self, detail: str) -> None:
        if not self._is_running:
            return
        self._is_running = self._is_stopped = False
        self.core = None
        self._life += 1
        self._inbox.clear()
        self._late.clear()
        self._unwritten.clear()
        self._wake_ns = None
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.line.close_far(detail)

    def lose_store(self) -> None:
        self.crash()
        self._shared.lose()
        self._store = self._shared.kept

    # One of a pair

    @property
    def is_leading(self) -> bool:
        """True if it leads as far as it knows."""
        return self.core is not None and (not self._is_one_of_two or self.agenda.now_ns < self._lease_ends_ns)

    def stop_for_a_while(self) -> None:
        self._is_stopped = self._is_running

    def go_on(self) -> None:
        """End the suspension: run the calls that came due meanwhile, in order."""
        self._is_stopped = False
        late, self._late = self._late, []
        for work, arguments in late:
            work(*arguments)

    def cut_off_from_store(self, is_cut: bool) -> None:
        self._is_cut = is_cut

    def _is_late(self, work: Callable[..., None], *arguments: Any) -> bool:
        if self._is_stopped:
            self._late.append((work, arguments))
        return self._is_stopped

    def _look(self, life: int) -> None:
        """Read the store's mark, to find out whether the store can be taken."""
        if life == self._life and not self._is_late(self._look, life):
            self.agenda.after(self._section.store_delay, self._looked, life, self.agenda.now_ns)

    def _looked(self, life: int, asked_ns: int) -> None:
        if life != self._life or self._is_late(self._looked, life, asked_ns):
            return
        mark = self._shared.mark
        if not self._is_cut and self._may_be_had(mark, asked_ns) and self._shared.take(mark, self._process):
            self._store = self._shared.copy()
            self._lease_ends_ns = lease_end_ns(asked_ns, self._section.lease, self._section.margin)
            self._begin()
            self._renew(life)
            return
        self.agenda.after(self._section.look_interval, self._look, life)

    def _may_be_had(self, mark: LeaseMark, asked_ns: int) -> bool:
        now_ns, lease_ns = self.agenda.now_ns, self._section.lease
        return not mark.key or self._watch.has_ended(mark, lease_ns, asked_ns=asked_ns, answered_ns=now_ns)

    def _renew(self, life: int) -> None:
        if life == self._life and not self._is_late(self._renew, life):
            self.agenda.after(self._section.store_delay, self._renewed, life, self.agenda.now_ns)

    def _renewed(self, life: int, asked_ns: int) -> None:
        if life != self._life or self._is_late(self._renewed, life, asked_ns):
            return
        if not self._is_cut:
            if not self._shared.renew(self._process):
                self._deposed()
                return
            self._lease_ends_ns = lease_end_ns(asked_ns, self._section.lease, self._section.margin)
        self.agenda.after(self._section.renew_interval, self._renew, life)

    def _deposed(self) -> None:
        """End after losing the store to the other controller; the supervisor starts it again after `restart`."""
        self._end("the controller has lost its store")
        self.agenda.after(self._section.restart, self._run)

    def _is_over(self) -> bool:
        """True once its lease has lapsed for so long that gateways should look for the other controller."""
        return self._is_one_of_two and self.agenda.now_ns >= self._lease_ends_ns + self._section.lapse_max

    def _put(self, change: Callable[[KeptDocument], None]) -> bool:
        """Write a change to the store. Returns True if it is written; a controller that finds another holding the store
        ends."""
        if not self._shared.write(self._process, change):
            self._deposed()
            return False
        if self._store is not self._shared.kept:
            change(self._store)
        for observer in self._observers:
            observer.on_store_written(self.agenda.now_ns, self._process)
        return True

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
        """True if an effect is written to the store, as in the live controller: a returning gateway stays down until it
        is relied on."""
        if not isinstance(effect, TellCondition):
            return isinstance(effect, KeepOwners | KeepPolicy | PublishRecords)
        was_down = effect.gateway_id in self._down
        if effect.condition is Condition.DOWN:
            self._down.add(effect.gateway_id)
            return not was_down
        if effect.condition in (Condition.UP, Condition.ALONE):
            self._down.discard(effect.gateway_id)
            return was_down
        return False

    def _written(self, life: int, kept: tuple[Effect, ...], again: tuple[GatewayId, ...]) -> None:
        """Queue a write whose delay is over; gateways are told after it is written."""
        if life != self._life or self._is_late(self._written, life, kept, again):
            return
        self._unwritten.append((kept, again))
        if len(self._unwritten) == 1:
            self._write_what_waits(life)

    def _write_what_waits(self, life: int) -> None:
        """Write the queued changes in order, and send the snapshots that follow from them."""
        if life != self._life or self._is_late(self._write_what_waits, life):
            return
        while self._unwritten and not self._is_cut:
            kept, again = self._unwritten.popleft()
            if kept and not self._put(lambda store, kept=kept: _write_all(store, kept)):  # type: ignore[misc]
                return
            for gateway_id in list(self._streams) if kept else again:
                self._send_snapshot(gateway_id)
        if self._unwritten:
            self.agenda.after(_WRITE_AGAIN_NS, self._write_what_waits, life)

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
        if self._is_late(self._wake, life, wake_ns):
            return
        self._wake_ns = None
        next_ns = self.core.next_wakeup_ns()
        if next_ns is not None and next_ns <= self._now_ns():
            self.tell(events.ControllerTimePassed())
        else:
            self._arm()

    # Streams

    def answer(self, near: SimAttachment, life: int, line: NetworkLine) -> _Stream:
        return _Stream(self, near, life, line)

    def attached(self, stream: _Stream, hello: SimHello) -> None:
        if self._is_late(self.attached, stream, hello):
            return
        if self.core is None or self._is_over() or (self._is_cut and self._has_to_write(hello)):
            stream.line.close_far("connection refused")
            return
        before = self._streams.pop(hello.gateway_id, None)
        if before is not None:
            before.line.close_far("another stream of this gateway came")
        self._streams[hello.gateway_id] = stream
        stream.heard_ns = self.agenda.now_ns
        if not self._register(hello):
            return
        self.tell(events.GatewayConnected(hello.gateway_id, hello.policy))

    def reported(self, stream: _Stream, peers: tuple[PeerHeard, ...], left_out: tuple[LeftOut, ...]) -> None:
        if not self._is_ours(stream) or self._is_late(self.reported, stream, peers, left_out):
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
        if left_out:
            refused = tuple((each.replica_id, each.reason) for each in left_out)
            self.tell(events.GrantsLeftOut(stream.near.gateway_id, refused))

    def policy_accepted(self, stream: _Stream, policy: ResidencyPolicy) -> None:
        if self._is_ours(stream) and not self._is_late(self.policy_accepted, stream, policy):
            self.tell(events.PolicyAccepted(stream.near.gateway_id, policy))

    def history_came(self, stream: _Stream, history: PoolHistory) -> None:
        if not self._is_ours(stream) or self._is_late(self.history_came, stream, history):
            return
        core, sender = self.core, stream.near.gateway_id
        if core is not None and not self._histories.take(sender, history, self._pool_mesh(core)):
            stream.histories.add(((history.home, history.pool), sender))

    def _pool_mesh(self, core: ControllerCore) -> PoolMesh:
        store = self._store
        owners = {
            (each.home, each.pool): store.owners.get(each.replica_id) for each in core.replicas.values() if each.pool
        }
        return PoolMesh(owners, {each: entry.place for each, entry in store.gateways.items()}, store.policies)

    def _hand_over(self, gateway_id: GatewayId, stream: _Stream, core: ControllerCore) -> None:
        """Send the histories of the pools that the gateway serves from its next snapshot on."""
        mesh = self._pool_mesh(core)
        self._histories.look_again(mesh)
        stream.histories = {each for each in stream.histories if mesh.owners.get(each[0]) == gateway_id}
        for history in self._histories.due(gateway_id, stream.histories, mesh):
            stream.histories.add(((history.home, history.pool), history.recorded_by))
            for observer in self._observers:
                observer.on_history_sent(self.agenda.now_ns, gateway_id, history, self._store.policies)
            stream.line.to_near(stream.near.history_came, stream.near_life, history)

    def stream_lost(self, stream: _Stream, detail: str) -> None:
        if self._is_ours(stream) and not self._is_late(self.stream_lost, stream, detail):
            del self._streams[stream.near.gateway_id]
            self.tell(events.GatewayDisconnected(stream.near.gateway_id, detail))

    def _is_ours(self, stream: _Stream) -> bool:
        return self._streams.get(stream.near.gateway_id) is stream

    def _has_to_write(self, hello: SimHello) -> bool:
        is_ahead = hello.taken.is_newer_than(self._version())  # the store was lost, or is an old one
        return is_ahead or self._store.gateways.get(hello.gateway_id) != _entry_of(hello)

    def _register(self, hello: SimHello) -> bool:
        """Register a gateway and its replicas from its hello, so that its region file is written only once. False:
        another controller has the store."""
        if hello.taken.is_newer_than(self._version()):
            term = hello.taken.term + 1
            if not self._put(lambda store: setattr(store, "term", term)):
                return False
        if self._has_to_write(hello):
            if not self._put(lambda store: _note_hello(store, hello)):
                return False
            self._tell_registry()
        return True

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
        if len(self._histories):
            self._hand_over(gateway_id, stream, self.core)
        snapshot = self._snapshot_for(gateway_id, self.core)
        for observer in self._observers:
            observer.on_snapshot_sent(self.agenda.now_ns, snapshot, self._store.policies)
        near = stream.near
        if near.loses_this():
            stream.line.close_far("the stream broke")
            self.stream_lost(stream, "the stream broke")
        elif near.delay_ns:
            self.agenda.after(near.delay_ns, near.snapshot_came, stream.near_life, snapshot)
        else:
            stream.line.to_near(near.snapshot_came, stream.near_life, snapshot)

    def _snapshot_for(self, gateway_id: GatewayId, core: ControllerCore) -> ControlSnapshot:
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
        return ControlSnapshot(self._version(), gateway_id, replicas, away, peers, records=core.tree)

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
        if life != self._life or self._is_late(self._look_after, life):
            return
        if self.is_leading:
            for observer in self._observers:
                observer.on_acting(self.agenda.now_ns, self._process)
        for stream in list(self._streams.values()):
            if self._is_over():
                stream.line.close_far("its lease is over")
                self.stream_lost(stream, "its lease is over")
            elif self.agenda.now_ns - stream.heard_ns > self._section.stream_timeout:
                stream.line.close_far("the gateway fell silent")
                self.stream_lost(stream, "it fell silent")
            else:
                stream.line.to_near(stream.near.is_alive, stream.near_life, stream.line)
        for gateway_id in self._store.gateways:
            self._probe(life, self._attachments[gateway_id])
        self.agenda.after(self._section.probe_interval, self._look_after, life)

    def _probe(self, life: int, target: SimAttachment) -> None:
        answers: list[bool] = []
        self._network.datagram(self.region, target.region, self._probed, life, target, answers)
        self.agenda.after(self._section.probe_timeout, self._gave_up, life, target.gateway_id, answers)

    def _probed(self, life: int, target: SimAttachment, answers: list[bool]) -> None:
        """Answer a probe at the gateway's host; a host that is gone does not answer."""
        if not target.gateway.is_silent:
            self._network.datagram(
                target.region, self.region, self._answered, life, target.gateway_id, target.gateway.is_up, answers
            )

    def _answered(self, life: int, gateway_id: GatewayId, is_up: bool, answers: list[bool]) -> None:
        if life != self._life or self._is_late(self._answered, life, gateway_id, is_up, answers):
            return
        if not answers:
            answers.append(is_up)
            detail = "" if is_up else "connection refused"
            self.tell(events.GatewayProbed(gateway_id, is_up, detail, was_refused=not is_up))

    def _gave_up(self, life: int, gateway_id: GatewayId, answers: list[bool]) -> None:
        if life != self._life or self._is_late(self._gave_up, life, gateway_id, answers):
            return
        if not answers:
            answers.append(False)
            self.tell(events.GatewayProbed(gateway_id, False, "no answer in time"))


def _entry_of(hello: SimHello) -> GatewayEntry:
    return GatewayEntry(hello.gateway_id, hello.place, (str(hello.gateway_id),))


def _note_hello(store: KeptDocument, hello: SimHello) -> None:
    store.gateways[hello.gateway_id] = _entry_of(hello)
    store.replicas |= {each.replica_id: _replica_of(each, hello.gateway_id) for each in hello.replicas}


def _replica_of(spec: ReplicaSpec, home: GatewayId) -> ReplicaEntry:
    """Entry of a replica. Workers of a disaggregated pool move together."""
    if spec.role is ReplicaRole.UNIFIED:
        return ReplicaEntry(spec.replica_id, home)
    return ReplicaEntry(spec.replica_id, home, pool=spec.pool, part=spec.role)


def _write_all(store: KeptDocument, kept: Iterable[Effect]) -> None:
    for effect in kept:
        _write(store, effect)
    store.revision += 1


def _write(store: KeptDocument, effect: Effect) -> None:
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
