"""KV events in the simulated world: engines number what their caches store and remove, and a gateway's process follows
them with delay and loss, as the live subscriber does.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from gateway.core.features.kv_events.events import CacheChange, ChangeKind, EngineTold, EngineUnheard, UnheardReason
from gateway.core.vocabulary import RegionName, ReplicaId
from loadgen.engine.blocks import NamesChange
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.network import Network

_KEPT = 200
"""Batches that an engine can repeat."""


class KvLog:
    """Numbered batches of one process of an engine."""

    def __init__(self) -> None:
        self.kept: deque[tuple[int, tuple[CacheChange, ...]]] = deque(maxlen=_KEPT)
        self.next = 0
        self.listeners: list[Callable[[int, tuple[CacheChange, ...]], None]] = []

    def publish(self, changes: Sequence[NamesChange], block_tokens: int) -> None:
        if not changes:
            return
        number, told = self.next, tuple([_as_told(each, block_tokens) for each in changes])
        self.next += 1
        self.kept.append((number, told))
        for listener in list(self.listeners):
            listener(number, told)


class KvFeed:
    """One gateway process' subscription to one engine's process."""

    def __init__(
        self,
        replica_id: ReplicaId,
        log: KvLog,
        *,
        tell: Callable[[EngineTold | EngineUnheard], None],
        hears: Callable[[ReplicaId], bool],
        send: Callable[[Callable[[], None]], None],
        pause: Callable[[Callable[[], None]], None],
    ) -> None:
        """`send` carries a message to the gateway, late or never; `pause` waits as the gateway does after it has cut
        an engine off."""
        self.log = log
        self._replica_id = replica_id
        self._tell = tell
        self._hears = hears
        self._send = send
        self._pause = pause
        self._next = 0
        self._is_open = True
        self._is_cut_off = False
        log.listeners.append(self._published)

    def close(self) -> None:
        self._is_open = False
        self.log.listeners.remove(self._published)

    def begin(self, *, is_restarted: bool = False) -> None:
        """Begin with what the engine can repeat."""
        if not self._is_open:
            return
        self._is_cut_off = False
        cleared = (CacheChange(ChangeKind.CLEARED),) if is_restarted else ()
        self._tell(EngineTold(self._replica_id, cleared, is_first=True))
        kept = list(self.log.kept)
        self._next = kept[0][0] if kept else self.log.next
        self._catch_up()

    def _published(self, number: int, changes: tuple[CacheChange, ...]) -> None:
        self._send(partial(self._came, number, changes))

    def _came(self, number: int, changes: tuple[CacheChange, ...]) -> None:
        if not self._is_open or self._is_cut_off:
            return
        if not self._hears(self._replica_id):
            self.begin()
        if number > self._next:
            self._catch_up()
        self._take(number, changes)

    def _take(self, number: int, changes: tuple[CacheChange, ...]) -> None:
        """Tell the core of a message, if it is the next one, and stop for a time if the core refuses it."""
        if number != self._next or self._is_cut_off:
            return
        self._next += 1
        self._tell(EngineTold(self._replica_id, changes))
        if not self._hears(self._replica_id):
            self._is_cut_off = True
            self._pause(self.begin)

    def _catch_up(self) -> None:
        """Take in what the engine repeats; begin anew if it has lost some."""
        for number, changes in list(self.log.kept):
            if number > self._next:
                self._tell(EngineUnheard(self._replica_id, UnheardReason.GAP))
                self._tell(EngineTold(self._replica_id, (), is_first=True))
                self._next = number
            self._take(number, changes)


class KvFeeds:
    """Subscriptions of one gateway's process."""

    def __init__(
        self,
        region: RegionName,
        agenda: Agenda,
        network: Network,
        *,
        rng: random.Random,
        loss_share: float,
        pause_ns: int,
        tell: Callable[[EngineTold | EngineUnheard], None],
        hears: Callable[[ReplicaId], bool],
    ) -> None:
        self._region = region
        self._agenda = agenda
        self._network = network
        self._rng = rng
        self._loss_share = loss_share
        self._pause_ns = pause_ns
        self._tell = tell
        self._hears = hears
        self._feeds: dict[ReplicaId, KvFeed] = {}

    def follow(self, logs: dict[ReplicaId, tuple[RegionName, KvLog]]) -> None:
        """Follow these engines' processes, and no others."""
        for replica_id, feed in list(self._feeds.items()):
            if replica_id not in logs:
                feed.close()
                del self._feeds[replica_id]
        for replica_id, (region, log) in logs.items():
            before = self._feeds.get(replica_id)
            if before is not None and before.log is log:
                continue
            if before is not None:
                before.close()
            feed = self._feeds[replica_id] = KvFeed(
                replica_id,
                log,
                tell=self._tell,
                hears=self._hears,
                send=partial(self._send, region),
                pause=partial(self._agenda.after, self._pause_ns),
            )
            feed.begin(is_restarted=before is not None)

    def close(self) -> None:
        self.follow({})

    def _send(self, region: RegionName, come: Callable[[], None]) -> None:
        """Carry a message from an engine of the region."""
        if self._rng.random() < self._loss_share or self._network.is_cut(region, self._region):
            return
        self._agenda.after(self._network.round_trip_ns(region, self._region) // 2, come)


def _as_told(change: NamesChange, block_tokens: int) -> CacheChange:
    if not change.is_stored:
        return CacheChange(ChangeKind.REMOVED, change.names)
    return CacheChange(ChangeKind.STORED, change.names, change.parent, block_tokens)
