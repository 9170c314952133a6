"""Accounts of a pool's decode workers: requests sent to each, requests running, and their KV tokens.

The accounts make no decisions. A request counts from the moment it is sent, whether it runs yet or not.
"""

from __future__ import annotations

from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import ReplicaId, RequestId

RANK_BITS = 32
BOUNDLESS = 1 << 60
"""Number of tokens that stands for no bound."""
_SERIALS = 1 << RANK_BITS


class Group:
    """Barrier group: workers that step together, at the pace of the slowest."""

    __slots__ = ("name", "workers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.workers: list[Worker] = []

    def load_max(self) -> int:
        return max([worker.total_load for worker in self.workers], default=0)

    def load_min(self) -> int:
        return min([worker.total_load for worker in self.workers], default=0)

    def load_sum(self) -> int:
        return sum([worker.total_load for worker in self.workers])


class Worker:
    """One decode worker."""

    __slots__ = (
        "cap",
        "counted_free",
        "counted_in_batch",
        "counted_open",
        "earlier",
        "fresh",
        "group",
        "heard",
        "id",
        "in_flight",
        "inherited",
        "inherited_tokens",
        "is_open",
        "is_seeded",
        "load",
        "number",
        "room_tokens",
        "running",
        "slots",
        "told_tokens",
    )

    def __init__(self, worker_id: ReplicaId, number: int, group: Group) -> None:
        self.id = worker_id
        self.number = number
        """Number unique within the pool; the smallest free one is assigned."""
        self.group = group
        self.slots = 0
        """Limit on requests in flight there."""
        self.cap = BOUNDLESS
        """Temporary limit on own requests in flight; lower while the worker has to prove itself."""
        self.room_tokens = 0
        """Capacity of its KV cache, in tokens; 0: not known."""
        self.told_tokens = 0
        """Capacity as reported by its engine; 0: not reported."""
        self.is_open = True
        """The worker may be sent requests."""
        self.is_seeded = False
        """The engine has reported since the worker joined."""
        self.in_flight = 0
        """Own requests sent and not ended."""
        self.heard = 0
        """Number of engine reports, counted until the inherited requests have drained."""
        self.fresh = 0
        """Requests in flight that were sent since the last counted report, which may not include them."""
        self.running = 0
        """Requests in flight that have generated a token."""
        self.load = 0
        """KV tokens of the requests in flight."""
        self.earlier = 0
        """Own requests that were sent there before the worker joined and have not ended. Some engines report a request
        only once its KV cache has arrived, so reports may lack them."""
        self.inherited = 0
        """Requests there that this gateway did not send and that have not drained yet."""
        self.inherited_tokens = 0
        self.counted_open = False
        """Last values that entered the tier's totals; the next two likewise."""
        self.counted_free = 0
        self.counted_in_batch = 0

    @property
    def free(self) -> int:
        return self.free_of(self.slots)

    def free_of(self, slots: int) -> int:
        """Free slots out of `slots`; never below 0, although another gateway may have sent more than that."""
        return max(0, min(slots - max(self.inherited, self.earlier), self.cap) - self.in_flight)

    @property
    def total_load(self) -> int:
        return self.load + self.inherited_tokens

    @property
    def room_left(self) -> int:
        """Largest request, in tokens, that fits. Unlimited where the capacity is unknown or the worker is empty."""
        if not self.room_tokens or not (self.in_flight or self.inherited):
            return BOUNDLESS
        return self.room_tokens - self.total_load


class Entry:
    """One request whose prompt has been prefilled, from then to its end."""

    __slots__ = (
        "aged_ns",
        "expires_ns",
        "facts",
        "generated",
        "heard",
        "is_running",
        "pooled_ns",
        "rank",
        "row",
        "timer",
        "worker",
    )

    def __init__(self, facts: Facts, serial: int, pooled_ns: int, expires_ns: int) -> None:
        self.facts = facts
        self.rank = facts.prompt_tokens << RANK_BITS | (_SERIALS - 1 - serial % _SERIALS)
        """Sort key by weight, then age: the larger, then the older entry has the higher rank. Ranks are unique within a
        pool."""
        self.pooled_ns = pooled_ns
        self.aged_ns = pooled_ns + (expires_ns - pooled_ns) // 2
        """Time from which it is admitted before others: half of its time in the pool."""
        self.expires_ns = expires_ns
        self.timer = Timer(TimerKind.REQUEST, facts.request_id)
        self.worker: Worker | None = None
        self.heard = 0
        """Value of the worker's `heard` when the entry was sent there."""
        self.is_running = False
        self.generated = 0
        """Tokens generated, as far as known."""
        self.row = -1
        """Row in a policy's own table."""

    @property
    def key(self) -> RequestId:
        return self.facts.request_id

    @property
    def weight(self) -> int:
        """Weight w: the KV tokens that the request adds."""
        return self.facts.prompt_tokens

    @property
    def load(self) -> int:
        return self.facts.prompt_tokens + self.generated


def dispatch(entry: Entry, worker: Worker) -> None:
    assert entry.worker is None, "sent twice"
    entry.worker = worker
    entry.heard = worker.heard
    worker.fresh += 1
    worker.in_flight += 1
    worker.load += entry.load


def start(entry: Entry) -> None:
    worker = entry.worker
    assert worker is not None, "the entry is at a worker"
    if not entry.is_running:
        entry.is_running = True
        worker.running += 1


def progress(entry: Entry, generated: int) -> None:
    """Set the number of tokens generated in all. An older count that arrives late is ignored."""
    worker = entry.worker
    assert worker is not None, "the entry is at a worker"
    if generated > entry.generated:
        worker.load += generated - entry.generated
        entry.generated = generated


def end(entry: Entry) -> None:
    worker = entry.worker
    assert worker is not None, "the entry is at a worker"
    worker.in_flight -= 1
    worker.fresh -= entry.heard == worker.heard
    worker.running -= entry.is_running
    worker.load -= entry.load
    entry.worker = None


def inherit(worker: Worker, running: int, waiting: int, kv_tokens: int) -> None:
    """Apply an engine's report. At the first report, requests beyond this gateway's own count as inherited from an
    earlier sender; afterwards their number can only fall.

    Own requests sent before the report are among the reported ones. Those sent since the last report may not be, and
    one that has ended meanwhile still may be; so the inherited count may be too high for a moment, but never too low.
    Tokens generated by own requests do not matter: without a stream, no first token is reported.
    """
    if worker.is_seeded and not worker.inherited:
        return
    ours = worker.in_flight - worker.fresh if worker.is_seeded else worker.in_flight
    foreign = max(0, running + waiting - ours)
    worker.inherited = min(worker.inherited, foreign) if worker.is_seeded else foreign
    worker.is_seeded = True
    worker.heard += 1
    worker.fresh = 0
    worker.inherited_tokens = max(0, kv_tokens - worker.load) if worker.inherited else 0
