"""The books of a pool's decode workers: what has been sent to each, what runs, and how many KV tokens that is.

They count, and decide nothing. What was sent counts from that moment on, whether it runs yet or not.
"""

from __future__ import annotations

from gateway.core.decode.predictor import Facts
from gateway.core.timers import Timer, TimerKind
from gateway.core.vocabulary import ReplicaId, RequestId

RANK_BITS = 32
BOUNDLESS = 1 << 60
"""More tokens than there are."""
_SERIALS = 1 << RANK_BITS


class Group:
    """Workers that step in time: the slowest of them is the pace of all."""

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
    """One that decodes."""

    __slots__ = (
        "cap",
        "counted_free",
        "counted_in_batch",
        "counted_open",
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
        """No other one of the pool has it; of those that are free, the smallest is given."""
        self.group = group
        self.slots = 0
        """How many may be in flight there."""
        self.cap = BOUNDLESS
        """How many of ours may be for now: fewer, while it has to prove itself first."""
        self.room_tokens = 0
        """In its cache; 0: not known."""
        self.told_tokens = 0
        """The same, as its engine told it."""
        self.is_open = True
        """May it be sent anything?"""
        self.is_seeded = False
        """Has its engine told anything since it joined?"""
        self.in_flight = 0
        """Sent by us and not over."""
        self.heard = 0
        """How often its engine was heard of, while that matters."""
        self.fresh = 0
        """Of those in flight, the ones sent since: what it told last cannot have counted them."""
        self.running = 0
        """Of those, the ones that have generated something."""
        self.load = 0
        """Their KV tokens."""
        self.inherited = 0
        """Requests there that were not sent by us, and have not drained yet."""
        self.inherited_tokens = 0
        self.counted_open = False
        """As it was when the tier counted last, as the next two."""
        self.counted_free = 0
        self.counted_in_batch = 0

    @property
    def free(self) -> int:
        return self.free_of(self.slots)

    def free_of(self, slots: int) -> int:
        """Of so many; never below 0, though engines may have been given more than that by somebody else."""
        return max(0, min(slots - self.inherited, self.cap) - self.in_flight)

    @property
    def total_load(self) -> int:
        return self.load + self.inherited_tokens

    @property
    def room_left(self) -> int:
        """The largest request, in tokens, that fits. Any does where nothing else is."""
        if not self.room_tokens or not (self.in_flight or self.inherited):
            return BOUNDLESS
        return self.room_tokens - self.total_load


class Entry:
    """One request whose prompt has been read, from then to its end."""

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
        """Orders entries by their weight, then by age: the larger, then the older, has the higher one. No two are equal
        in one pool."""
        self.pooled_ns = pooled_ns
        self.aged_ns = pooled_ns + (expires_ns - pooled_ns) // 2
        """From then on it goes first."""
        self.expires_ns = expires_ns
        self.timer = Timer(TimerKind.REQUEST, facts.request_id)
        self.worker: Worker | None = None
        self.heard = 0
        """How often that had been heard of when it was sent there."""
        self.is_running = False
        self.generated = 0
        """Tokens, as far as known."""
        self.row = -1
        """Where a policy keeps what it knows of it."""

    @property
    def key(self) -> RequestId:
        return self.facts.request_id

    @property
    def weight(self) -> int:
        """w: the KV tokens that it brings."""
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
    assert worker is not None, "nobody has it"
    if not entry.is_running:
        entry.is_running = True
        worker.running += 1


def progress(entry: Entry, generated: int) -> None:
    """It has generated so many tokens in all. An older count that comes late changes nothing."""
    worker = entry.worker
    assert worker is not None, "nobody has it"
    if generated > entry.generated:
        worker.load += generated - entry.generated
        entry.generated = generated


def end(entry: Entry) -> None:
    worker = entry.worker
    assert worker is not None, "nobody has it"
    worker.in_flight -= 1
    worker.fresh -= entry.heard == worker.heard
    worker.running -= entry.is_running
    worker.load -= entry.load
    entry.worker = None


def inherit(worker: Worker, running: int, waiting: int, kv_tokens: int) -> None:
    """What its engine told: what is there beyond ours is inherited from whoever sent before us, when it is first heard
    of; from then on it only drains.

    Ours are among what it told if they were sent before it was asked. Whoever was sent since it was last heard of may
    not be, and one that has ended meanwhile is: so what is inherited may look more than it is for a moment, and not
    less. Whether ours have generated anything does not matter: an answer in one piece tells of no first token.
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
