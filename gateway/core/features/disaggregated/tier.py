"""Decode tier of one pool: the requests that wait for a decode worker, the load of each worker, and the assignment of
requests to workers when a tick is due. It does no I/O and reads no clock; its driver sends what it admits and reports
the results.

Drivers are the gateway's core and an evaluation without a gateway. A driver must call `ended` exactly once for each
entry that was admitted or committed, whatever its result and even when its worker has left, and must withdraw a waiting
entry that has become unwanted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from gateway.core.features.disaggregated import books
from gateway.core.features.disaggregated.admissions import AdmissionReason, DecodeAdmission, DecodeFigures, GroupFigures
from gateway.core.features.disaggregated.books import Entry, Group, Worker
from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import LOCAL_POLICIES, DecodeConfig, DecodePolicyName, check_decode
from gateway.core.features.disaggregated.policy import DecodePolicies, DecodePolicy, Round, beside, roomiest, with_slots
from gateway.core.features.disaggregated.pool import Pool
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.seats import Seats
from gateway.core.kernel.bits import lowest_slot
from gateway.core.vocabulary import PoolSpec, ReplicaId, RequestId

_LONG_AGO_NS = -(1 << 61)


class DecodeTier:
    """Decode tier of one pool. Times are integers in nanoseconds on one clock, and never go back."""

    def __init__(
        self,
        config: DecodeConfig,
        spec: PoolSpec,
        rng: random.Random,
        predictor: Predictor | None = None,
        *,
        policies: DecodePolicies = BUILT_IN,
    ) -> None:
        self._policies = policies
        self._rng = rng
        self._predictor = predictor
        self.seats = Seats()
        self._workers: dict[ReplicaId, Worker] = {}
        self._groups: dict[str, Group] = {}
        self._numbers = 0
        """Mask of the worker numbers in use."""
        self._pool = Pool()
        self._sent: dict[RequestId, Entry] = {}
        """Entries at a worker, including workers that have left."""
        self._serial = 0
        self._last_tick_ns = _LONG_AGO_NS
        self._last_progress_ns = _LONG_AGO_NS
        self._dirty_ns: int | None = None
        """Time of the last change that may let a tick admit what the previous one did not."""
        self._open = self._free = self._free_in_batches = 0
        """Number of open workers, their free slots, and their free slots within their batches; cached because they are
        read far more often than they change."""
        self._admitted = dict.fromkeys(AdmissionReason, 0)
        self._expired = self._ticks = self._ticks_degraded = 0
        self.configure(config, spec, _LONG_AGO_NS)

    def configure(self, config: DecodeConfig, spec: PoolSpec, now_ns: int) -> None:
        """Apply another config; the accounts stay. Raises ValueError if `check_decode` does."""
        connector = spec.connector
        assert connector is not None, f"pool {spec.name} is not disaggregated"
        assert spec.decode_batch_max > 0, f"pool {spec.name}: no decode worker may run anything"
        check_decode(config, connector)
        self._config, self._spec, self._connector = config, spec, connector
        self._beyond = config.in_flight_margin if config.sends_at_once or not connector.is_sequential else 0
        """Requests that a worker may have in flight beyond its batch."""
        for worker in self._workers.values():
            self._size(worker)
            self._count(worker)
        self.policy = self._new_policy()
        self._dirty(now_ns)

    def _new_policy(self) -> DecodePolicy:
        kind = self._policies[self._config.policy or DecodePolicyName.BR_0]
        policy = kind(self._config, self._rng, self._predictor, self.seats)
        for entry in self._sent.values():
            worker = entry.worker
            if worker is not None and self._is_ours(worker):
                policy.sent(entry, worker)
        return policy

    # Workers

    def join(self, worker_id: ReplicaId, group: str, now_ns: int, is_open: bool = True, earlier: int = 0) -> None:
        """Add a worker, to a group of its own if none is named; a known worker moves to the group. `earlier`: own
        requests that a new worker runs already, from before it left; `earlier_ended` tells of the end of each.

        The worker counts as empty until its engine is first observed: a driver that cannot know that it is empty adds
        it closed, and opens it after the first observation.
        """
        name = group or f"alone {worker_id}"
        known = self._workers.get(worker_id)
        if known is not None:
            if known.group.name == name:
                return
            self._leave_group(known)
        joined = self._groups.setdefault(name, Group(name))
        worker = known or self._new_worker(worker_id, joined)
        worker.group = joined
        worker.earlier = earlier if known is None else known.earlier
        worker.is_open = is_open if known is None else known.is_open
        joined.workers.append(worker)
        self.seats.join(name)
        self._workers[worker_id] = worker
        self._count(worker)
        self._dirty(now_ns)

    def _new_worker(self, worker_id: ReplicaId, group: Group) -> Worker:
        number = lowest_slot(~self._numbers & (self._numbers + 1))
        self._numbers |= 1 << number
        worker = Worker(worker_id, number, group)
        self._size(worker)
        return worker

    def _size(self, worker: Worker) -> None:
        worker.slots = self._spec.decode_batch_max + self._beyond
        worker.room_tokens = self._spec.kv_tokens or worker.told_tokens

    def _is_ours(self, worker: Worker) -> bool:
        """Return whether the worker has not left; another one with its id may have joined since."""
        return self._workers.get(worker.id) is worker

    def leave(self, worker_id: ReplicaId) -> None:
        """Remove a worker from the pool. Its entries are still reported by `ended`."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        for entry in self._sent.values():
            if entry.worker is worker:
                self.policy.over(entry)
        self._numbers &= ~(1 << worker.number)
        self._leave_group(worker)
        worker.is_open = False
        self._count(worker)

    def _leave_group(self, worker: Worker) -> None:
        worker.group.workers.remove(worker)
        if not worker.group.workers:
            del self._groups[worker.group.name]
            self.seats.leave(worker.group.name)

    def set_open(self, worker_id: ReplicaId, is_open: bool, now_ns: int) -> None:
        """Open or close a worker for further requests. A closed worker keeps its accounts, and counts in its group."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.is_open != is_open:
            worker.is_open = is_open
            self._count(worker)
            self._dirty(now_ns)

    def limit(self, worker_id: ReplicaId, more: int | None, now_ns: int) -> None:
        """Limit the worker to `more` requests beyond those in flight until the next call, besides the limit of its
        batch; None: only its batch limits it."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        before = worker.free
        worker.cap = books.BOUNDLESS if more is None else worker.in_flight + more
        if worker.free != before:
            self._count(worker)
        if worker.free > before:
            self._dirty(now_ns)

    def observe(
        self,
        worker_id: ReplicaId,
        now_ns: int,
        *,
        running: int,
        waiting: int,
        kv_tokens: int,
        room_tokens: int = 0,
    ) -> None:
        """Apply a report of a worker's engine: running and waiting requests, KV tokens in use, and KV cache capacity
        (0: not reported). Requests of an earlier sender count until they have drained."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.told_tokens = room_tokens
        worker.room_tokens = self._spec.kv_tokens or room_tokens
        before = worker.free
        books.inherit(worker, running, waiting, kv_tokens)
        self._count(worker)
        if worker.free > before:
            self._dirty(now_ns)

    def take_artifact(self, digest: str, clusters: int, now_ns: int) -> None:
        """Switch to another ELDR artifact; an empty digest means none. Groups keep their seats."""
        self.seats.take(digest, clusters)
        self._dirty(now_ns)

    # Waiting entries

    def add(self, facts: Facts, now_ns: int, expires_ns: int) -> DecodeAdmission | None:
        """Add a request whose prompt has been prefilled and whose KV cache is kept until `expires_ns`. A policy or
        config that sends at once may return its admission; otherwise it waits for a tick."""
        key = facts.request_id
        assert key not in self._sent, f"{key} is decoded already"
        if self._config.sends_at_once and not len(self._pool):
            admission = self._choose_now(facts, now_ns, AdmissionReason.BYPASS)
            if admission is not None:
                return admission
        self._pool.add(self._entry(facts, now_ns, min(expires_ns, now_ns + self._config.pool_ttl_ns)))
        self._dirty(now_ns)
        return None

    def commit(self, facts: Facts, now_ns: int) -> DecodeAdmission | None:
        """Choose the worker of a request before its prefill, with everything sent so far counted, running or not. None:
        every worker is closed or has its batch plus margin in flight, which `has_room` tells beforehand."""
        assert not self._connector.is_sequential, f"{self._connector} chooses once the prompt has been read"
        return self._choose_now(facts, now_ns, AdmissionReason.COMMITTED)

    def _choose_now(self, facts: Facts, now_ns: int, reason: AdmissionReason) -> DecodeAdmission | None:
        groups = list(self._groups.values())
        with_slot = with_slots(groups)
        workers = [worker for worker in with_slot if worker.room_left >= facts.prompt_tokens]
        if reason is AdmissionReason.COMMITTED:
            # no request may wait here: an engine without room takes it in once it has room
            workers = workers or with_slot
        if not workers:
            return None
        worker = self.policy.choose(facts, workers)
        considered_max = self._config.considered_max
        considered = beside(worker, roomiest(groups, considered_max)) if considered_max else ()
        entry = self._entry(facts, now_ns, now_ns)
        books.dispatch(entry, worker)
        self.sent(entry, worker)
        self._admitted[reason] += 1
        return DecodeAdmission(entry.key, worker.id, reason, 0, considered)

    def _entry(self, facts: Facts, now_ns: int, expires_ns: int) -> Entry:
        self._serial += 1
        if self._predictor is not None:
            facts.noted = self._predictor.note(facts)
        return Entry(facts, self._serial, now_ns, expires_ns)

    def withdraw(self, key: RequestId) -> bool:
        """Remove a waiting entry that has become unwanted. False: it does not wait."""
        return self._pool.take(key) is not None

    def expired(self, now_ns: int) -> list[RequestId]:
        """Remove the entries whose lease or time in the pool is over, and return their keys; they need a new
        prefill."""
        keys = self._pool.expired(now_ns)
        self._expired += len(keys)
        return keys

    # Ticks

    def next_ns(self) -> int | None:
        """Time of the next tick or expiry; None: none is due until something changes."""
        expiry_ns = self._pool.next_expiry_ns()
        if expiry_ns is None:
            return None
        tick_ns = self._tick_due_ns()
        return expiry_ns if tick_ns is None else min(expiry_ns, tick_ns)

    def _tick_due_ns(self) -> int | None:
        if self._dirty_ns is None or not len(self._pool) or not self._free:
            return None
        return max(self._dirty_ns, self._last_tick_ns + self._config.tick_interval_ns)

    def wants_progress(self, now_ns: int) -> bool:
        """Return whether a tick is due and the tokens generated should be known for it. If True, the driver queries
        them, reports them by `progressed`, and calls `tick` afterwards."""
        due_ns = self._tick_due_ns()
        if due_ns is None or due_ns > now_ns or not self._sent:
            return False
        if now_ns - self._last_progress_ns < self._config.progress_interval_ns:
            return False
        self._last_progress_ns = now_ns
        return True

    def tick(self, now_ns: int) -> list[DecodeAdmission]:
        """Admit entries to workers; empty if no tick is due. Expired entries must have been removed before."""
        due_ns = self._tick_due_ns()
        if due_ns is None or due_ns > now_ns:
            return []
        round_ = self.begin(now_ns)
        self.policy.admit(round_)
        self.finish(round_)
        return round_.admissions

    def begin(self, now_ns: int) -> Round:
        """Begin a tick. Separate from `tick` for code that measures the policy's part."""
        self._last_tick_ns = now_ns
        self._dirty_ns = None
        self._ticks += 1
        return Round(self._pool, list(self._groups.values()), now_ns, config=self._config, watcher=self)

    def finish(self, round_: Round) -> None:
        self._ticks_degraded += self.policy.is_degraded
        for admission in round_.admissions:
            self._admitted[admission.reason] += 1
        if not round_.left:
            self._dirty(round_.now_ns)

    def _dirty(self, now_ns: int) -> None:
        self._dirty_ns = now_ns

    # Entries at a worker

    def sent(self, entry: Entry, worker: Worker) -> None:
        """Account for an entry that was sent. Called by rounds only."""
        self._sent[entry.key] = entry
        self._count(worker)
        if self._config.policy in LOCAL_POLICIES:
            self.seats.counts[self.seats.state_of(entry.facts)] += 1
        self.policy.sent(entry, worker)

    def running(self, key: RequestId) -> None:
        """Note that the request's first token has arrived."""
        entry = self._sent.get(key)
        if entry is not None:
            books.start(entry)

    def progressed(self, key: RequestId, generated: int) -> None:
        """Set the tokens generated in all. An unknown key has ended meanwhile and is ignored."""
        entry = self._sent.get(key)
        if entry is not None and generated > entry.generated:
            books.start(entry)
            books.progress(entry, generated)
            if entry.worker is not None and self._is_ours(entry.worker):
                self.policy.progressed(entry)

    def ended(self, key: RequestId, now_ns: int, output_tokens: int | None = None) -> None:
        """Remove an entry from its worker. `output_tokens` is set only if the request came to its own end."""
        entry = self._sent.pop(key, None)
        if entry is None:
            return
        worker = entry.worker
        assert worker is not None, "an entry that was sent is at a worker"
        if self._is_ours(worker):
            self.policy.over(entry)
        books.end(entry)
        if self._is_ours(worker):
            self._count(worker)
        else:
            self.earlier_ended(worker.id, now_ns)
        if output_tokens is not None and self._predictor is not None:
            self._predictor.ended(entry.facts, output_tokens, now_ns)
        self._dirty(now_ns)

    def earlier_ended(self, worker_id: ReplicaId, now_ns: int) -> None:
        """Note the end of a request that was sent to the worker before it joined."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.earlier:
            worker.earlier -= 1
            self._count(worker)
            self._dirty(now_ns)

    # Queries

    def worker_of(self, key: RequestId) -> ReplicaId | None:
        entry = self._sent.get(key)
        return None if entry is None or entry.worker is None else entry.worker.id

    def in_flight(self) -> Iterator[tuple[ReplicaId, int]]:
        """Own requests in flight at each worker, those from before it joined included."""
        for worker in self._workers.values():
            yield worker.id, worker.in_flight + worker.earlier

    def is_pooled(self, key: RequestId) -> bool:
        return key in self._pool

    def has_room(self, in_prefill: int) -> bool:
        """Return whether another prompt may be prefilled: requests in prefill or pooled are fewer than the free slots
        plus a margin. For a concurrent connector: a worker can be committed."""
        if not self._connector.is_sequential:
            return self._free > 0
        if not self._open:
            return False
        return in_prefill + len(self._pool) < self._free_in_batches + self._config.room_margin

    @property
    def is_degraded(self) -> bool:
        """The last tick did without the predictor of the policy, and there has been no other predictor since."""
        return self.policy.is_degraded

    def forget_degradation(self) -> None:
        """Take note of another predictor, of which the next tick tells whether it can be used: an idle pool has no tick
        that would."""
        self.policy.is_degraded = False

    def figures(self, now_ns: int) -> DecodeFigures:
        oldest_ns = self._pool.oldest_ns()
        running = sum([worker.running for worker in self._workers.values()])
        in_flight = sum([worker.in_flight for worker in self._workers.values()])
        return DecodeFigures(
            groups=tuple([self._figures_of(group) for group in self._groups.values()]),
            pooled=len(self._pool),
            oldest_age_ns=0 if oldest_ns is None else now_ns - oldest_ns,
            dispatched=in_flight - running,
            running=running,
            inherited=sum([worker.inherited for worker in self._workers.values()]),
            free_slots=self._free_in_batches,
            admitted=dict(self._admitted),
            expired=self._expired,
            ticks=self._ticks,
            ticks_degraded=self._ticks_degraded,
            is_degraded=self.is_degraded,
            signatures=dict(self.seats.counts),
            clusters=self.seats.clusters,
            unseated=self.seats.unseated if self.seats.digest else 0,
        )

    def _figures_of(self, group: Group) -> GroupFigures:
        load_max = group.load_max()
        return GroupFigures(
            group.name,
            len(group.workers),
            sum([self._free_in_batch(worker) for worker in group.workers if worker.is_open]),
            load_max,
            group.load_min(),
            len(group.workers) * load_max - group.load_sum(),
        )

    def _free_in_batch(self, worker: Worker) -> int:
        return worker.free_of(worker.slots - self._beyond)

    def _count(self, worker: Worker) -> None:
        """Update the totals after a change of the worker."""
        self._open += worker.is_open - worker.counted_open
        free = worker.free if worker.is_open else 0
        in_batch = self._free_in_batch(worker) if worker.is_open else 0
        self._free += free - worker.counted_free
        self._free_in_batches += in_batch - worker.counted_in_batch
        worker.counted_open, worker.counted_free, worker.counted_in_batch = worker.is_open, free, in_batch
