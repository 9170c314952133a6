"""Interface of decode policies: a policy sends entries of a pool to workers, one round at a time.

A policy does no I/O, reads no clock, and uses no randomness but the tier's. The tier decides which workers are open.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Protocol

from mypy_extensions import mypyc_attr

from gateway.core.features.disaggregated.admissions import AdmissionReason, DecodeAdmission, WorkerView
from gateway.core.features.disaggregated.books import Entry, Group, Worker, dispatch
from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.disaggregated.pool import Pool
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.seats import Seats


class Watcher(Protocol):
    """Receiver of notifications about entries sent."""

    def sent(self, entry: Entry, worker: Worker) -> None: ...


class Round:
    """One tick, as a policy sees it: waiting entries, workers, and the time. Each entry sent is accounted for at
    once."""

    def __init__(
        self,
        pool: Pool,
        groups: list[Group],
        now_ns: int,
        *,
        config: DecodeConfig,
        watcher: Watcher,
    ) -> None:
        self.pool = pool
        self.groups = groups
        self.now_ns = now_ns
        self.admissions: list[DecodeAdmission] = []
        self._watcher = watcher
        self.left = config.admissions_max
        """Number of entries that may still be sent."""
        self._considered_max = config.considered_max
        self._roomiest: list[WorkerView] | None = None

    @property
    def is_over(self) -> bool:
        """Return whether no entry waits, or the limit of the round is reached."""
        return self.left <= 0 or not len(self.pool)

    def send(self, entry: Entry, worker: Worker, reason: AdmissionReason) -> None:
        assert self.left > 0, "more than one round may send"
        self.left -= 1
        considered = self._considered(worker)
        if self.pool.take(entry.key) is None:
            raise AssertionError(f"{entry.key} does not wait")
        dispatch(entry, worker)
        self._watcher.sent(entry, worker)
        self.admissions.append(DecodeAdmission(entry.key, worker.id, reason, self.now_ns - entry.pooled_ns, considered))

    def _considered(self, worker: Worker) -> tuple[WorkerView, ...]:
        if not self._considered_max:
            return ()
        if self._roomiest is None:
            self._roomiest = roomiest(self.groups, self._considered_max)
        return beside(worker, self._roomiest)


@mypyc_attr(allow_interpreted_subclasses=True)
class DecodePolicy(ABC):
    """One policy of one pool, for as long as the config names it."""

    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        self.config = config
        self.rng = rng
        self.predictor = predictor
        self.seats = seats or Seats()
        """Centroids of the worker groups; shared with the tier."""
        self.ticks_degraded = 0
        self.is_degraded = False

    @abstractmethod
    def choose(self, facts: Facts, workers: list[Worker]) -> Worker:
        """Choose the worker for this request among `workers`, which is not empty."""

    def admit(self, round_: Round) -> None:
        """Send as many entries as the policy wants. A policy that only chooses workers takes entries in order of
        arrival; an entry that fits no worker lets others pass until it has waited for half of its time."""
        workers = with_slots(round_.groups)
        for entry in round_.pool.in_order():
            if round_.is_over or not workers:
                return
            takers = [worker for worker in workers if worker.room_left >= entry.weight]
            if takers:
                worker = self.choose(entry.facts, takers)
                round_.send(entry, worker, AdmissionReason.POLICY)
                if not worker.free:
                    workers.remove(worker)
            elif entry.aged_ns <= round_.now_ns:
                # reserve the next room: no other entry is sent to the worker that has most
                workers.remove(max(workers, key=_room))

    # Notifications

    def sent(self, entry: Entry, worker: Worker) -> None:  # noqa: B027 - a policy keeps the books that it needs
        """Note that an entry has been sent to its worker."""

    def progressed(self, entry: Entry) -> None:  # noqa: B027
        """Note that the entry has generated more tokens."""

    def over(self, entry: Entry) -> None:  # noqa: B027
        """Note that the entry has left its worker, or the worker has left the pool."""


def with_slots(groups: list[Group]) -> list[Worker]:
    """Workers that may be sent requests."""
    return [worker for group in groups for worker in group.workers if worker.is_open and worker.free]


def roomiest(groups: list[Group], count: int) -> list[WorkerView]:
    """Workers that may be sent requests, with most free slots first, then widest margin."""
    found: list[tuple[int, int, int, Worker]] = []
    for group in groups:
        load_max = group.load_max()
        for worker in group.workers:
            free = worker.free if worker.is_open else 0
            if free:
                found.append((-free, worker.total_load - load_max, len(found), worker))
    found.sort()
    return [view_of(worker, worker.total_load - margin) for _, margin, _, worker in found[:count]]


def beside(worker: Worker, roomiest_: list[WorkerView]) -> tuple[WorkerView, ...]:
    """The chosen worker, then others of `roomiest_`; as many in all as `roomiest_` has, but at least the chosen one."""
    others = [view for view in roomiest_ if view.worker_id != worker.id]
    return (view_of(worker, worker.group.load_max()), *others[: max(0, len(roomiest_) - 1)])


def view_of(worker: Worker, load_max: int) -> WorkerView:
    load = worker.total_load
    return WorkerView(worker.id, worker.group.name, worker.free, load, load_max - load)


def _room(worker: Worker) -> int:
    return worker.room_left


DecodePolicies = dict[str, type[DecodePolicy]]
"""Decode policies by their config name."""
