"""Iteration-level model of one inference engine: batching, chunked prefill, paged KV, prefix cache, preemption.

The model is pure: time is an argument, outputs are values, and equal calls give equal results; it never sleeps, logs or
draws random numbers. The scheduling rules are those of vLLM's V1 scheduler, first come, first served. The duration of
an iteration is decided by the cost strategy in the configuration (`iteration_cost.py`), not here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from loadgen.engine.blocks import BlockPool, Holding
from loadgen.engine.iteration_cost import EvenPace, IterationCost, Pace
from loadgen.engine.leases import Leases
from loadgen.engine.sequences import EngineRequest, Sequence
from loadgen.engine.vocabulary import FinishReason, Rejection


@dataclass(frozen=True, slots=True)
class NewTokenReservation:
    """KV cache that SGLang's scheduler keeps free for tokens that requests of the batch may still generate: a ratio of
    them, which falls while all goes well and rises when requests had to be retracted. Defaults are SGLang's."""

    ratio_first: float = 0.7
    ratio_min: float = 0.098
    decay_iterations: int = 600
    """Iterations in which the ratio falls from the first to the least."""
    tokens_max: int = 4_096
    """Maximum number of tokens of one request that are kept free."""
    retract_iterations: int = 20
    """Iterations for which there has to be room once requests were retracted."""

    def __post_init__(self) -> None:
        assert 0 < self.ratio_min <= self.ratio_first <= 1
        assert self.decay_iterations > 0
        assert self.tokens_max > 0
        assert self.retract_iterations > 0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Size and speed of one engine."""

    cost: IterationCost
    """Duration of its iterations."""
    kv_blocks: int
    context_tokens_max: int
    sequences_max: int
    """Sequences in the batch at once (vLLM `max_num_seqs`)."""
    batch_tokens_max: int = 512
    """Tokens of one iteration, prefill and decode together (vLLM `max_num_batched_tokens`)."""
    prefill_chunk_tokens: int = 512
    """Upper bound on the prefill tokens among `batch_tokens_max`."""
    block_tokens: int = 16
    queued_requests_max: int | None = None
    """Waiting requests beyond which a new one is rejected (vLLM `max_num_queued_reqs`). None: no limit."""
    stream_every_iteration: bool = False
    """Report the tokens of each iteration separately. False: jump over iterations in which only token counts change."""
    reservation: NewTokenReservation | None = None
    """Schedule as SGLang does (`sglang_model.py`). None: as vLLM does."""
    report_tokens: bool = True
    """Report tokens after the first (`TokensGenerated`). False: only the other outputs are reported."""

    def __post_init__(self) -> None:
        assert 0 < self.sequences_max < self.batch_tokens_max, "a full batch must leave room for prefill"
        assert self.prefill_chunk_tokens > 0
        assert 0 < self.context_tokens_max <= self.kv_tokens, "the longest request must fit into the cache"

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_tokens


@dataclass(frozen=True, slots=True)
class _Progress:
    """Fields common to all outputs: the request and the time of the event."""

    request_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Admitted(_Progress):
    """The sequence entered the batch, with `cached_tokens` of its prompt found in the cache. Repeated after a
    preemption."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class FirstTokenMade(_Progress):
    """Prefill is done and the first output token exists."""


@dataclass(frozen=True, slots=True)
class TokensGenerated(_Progress):
    """Output tokens after the first; several when iterations were jumped over, the last of them at `at_ns`."""

    count: int


@dataclass(frozen=True, slots=True)
class Preempted(_Progress):
    """The sequence lost its blocks to an older sequence and waits again, at the head of the queue."""


@dataclass(frozen=True, slots=True)
class Finished(_Progress):
    """All output tokens exist; the blocks are released, or kept under a lease."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Fetching(_Progress):
    """A request with a remote prefill has blocks reserved here; the caller fetches its KV cache and then calls
    `deliver`."""

    cached_tokens: int
    """Prompt tokens that are in the local cache and need not be fetched."""


@dataclass(frozen=True, slots=True)
class Expired(_Progress):
    """The lease ended before a decode worker fetched the KV cache kept for this request."""


EngineOutput = Admitted | FirstTokenMade | TokensGenerated | Preempted | Finished | Fetching | Expired


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Gauges and counters of the engine, as a probe would read them."""

    running: int
    waiting: int
    """Requests that the last scheduling decision left waiting for a slot, for blocks or for batch tokens."""
    arriving: int
    """Requests submitted since that decision; like vLLM, the engine has not looked at them yet and counts them
    nowhere."""
    kv_usage: float
    """Share of blocks held by sequences, 0..1; idle cached blocks count as free."""
    blocks_held: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    rejections: int
    prompt_tokens: int
    """Tokens of prompts whose prefill is done, cached tokens included."""
    generation_tokens: int
    finished: int
    iterations: int
    deferred: int = 0
    """Requests with blocks reserved whose KV cache is still being fetched; they neither run nor wait for blocks."""
    kept: int = 0
    """Finished requests whose blocks are kept until a decode worker fetches them."""
    leases_expired: int = 0
    external_tokens: int = 0
    """Prompt tokens whose KV cache was fetched from a prefill worker."""


@dataclass(slots=True)
class Stretch:
    """One iteration in flight, or several in a row over the same batch. The pace is queried anew each time, because it
    may revise the durations of iterations that have not begun."""

    start_ns: int
    pace: Pace
    iterations: int
    batch: list[Sequence]
    allocations: list[int]
    """Blocks that the batch takes in iteration i of the stretch, indexed by i modulo the block size, for i ≥ 1."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.pace.duration_ns(self.iterations)

    def boundary_ns(self, iterations: int) -> int:
        """Time at which the first `iterations` iterations are over."""
        return self.start_ns + self.pace.duration_ns(iterations)

    def ended_by(self, now_ns: int) -> int:
        return min(self.pace.ended_by(max(0, now_ns - self.start_ns)), self.iterations)

    def blocks_taken(self, iterations: int) -> int:
        """Blocks that iterations 1 … `iterations` take; those of iteration 0 were taken when it was scheduled."""
        if not self.allocations:
            return 0
        cycles, rest = divmod(iterations, len(self.allocations))
        return cycles * len(self.batch) + sum(self.allocations[1 : rest + 1])


@dataclass(slots=True)
class NextStep:
    """One iteration while the scheduler puts it together."""

    now_ns: int
    tokens_left: int
    prefill_left: int
    batch: list[Sequence] = field(default_factory=list)
    prefill_tokens: int = 0

    @property
    def has_room(self) -> bool:
        return self.tokens_left > 0 and self.prefill_left > 0

    def share(self, sequence: Sequence) -> int:
        missing = sequence.request.prompt_tokens + sequence.generated - sequence.computed
        if missing == 1 and sequence.generated:
            return 1 if self.tokens_left else 0
        return min(missing, self.tokens_left, self.prefill_left)

    def take(self, sequence: Sequence, tokens: int) -> None:
        sequence.scheduled = tokens
        if not tokens:
            return
        self.tokens_left -= tokens
        if tokens > 1 or not sequence.is_decoding:
            self.prefill_left -= tokens
            self.prefill_tokens += tokens
        self.batch.append(sequence)


class EngineModel:
    """Model of one engine. Calls must not go back in time; outputs wait for the next `advance`.

    The engine acts at iteration boundaries only. `submit` and `abort` first process everything that lies strictly
    before them, so that calls made at a boundary, before `advance` passes it, take part in it.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._pool = BlockPool(config.kv_blocks)
        self._sequences: dict[str, Sequence] = {}
        self._arriving: OrderedDict[str, Sequence] = OrderedDict()
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: list[Sequence] = []
        """Sequences in order of admission: the last is the youngest."""
        self._fetching: dict[str, Sequence] = {}
        """Sequences with blocks for their prompts whose KV caches are still being fetched, by request id."""
        self._fetched: OrderedDict[str, Sequence] = OrderedDict()
        """Sequences whose KV caches have arrived and that only need a slot in the batch. They are admitted before the
        waiting ones, which may need the blocks that these hold."""
        self._leases = Leases()
        self._blocked = False
        """True when the head of the queue found too few blocks and none were released since."""
        self._stretch: Stretch | None = None
        self._wake_ns: int | None = None
        """Time at which an idle engine starts its next iteration."""
        self._settled_ns = -1
        """Time up to and including which everything has been processed."""
        self._outputs: list[EngineOutput] = []
        self._prefix_query_tokens = 0
        self._prefix_hit_tokens = 0
        self._external_tokens = 0
        self._preemptions = 0
        self._rejections = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished = 0
        self._iterations = 0

    @property
    def config(self) -> EngineConfig:
        return self._config

    def submit(self, request: EngineRequest, now_ns: int) -> Rejection | None:
        """Queue a request, or return the reason for its rejection."""
        assert request.request_id not in self._sequences, "request id in use"
        assert request.prompt_tokens > 0
        assert request.output_tokens > 0
        self._settle(now_ns - 1)
        rejection = self._rejection(request)
        if rejection is not None:
            self._rejections += 1
            return rejection
        sequence = Sequence(request, Holding(request.block_names))
        self._sequences[request.request_id] = sequence
        self._arriving[request.request_id] = sequence
        self._decide_at_next_boundary(now_ns)
        return None

    def abort(self, request_id: str, now_ns: int) -> None:
        """Drop a request and free its blocks at once. No effect on a request that has ended."""
        self._settle(now_ns - 1)
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return
        if (
            self._arriving.pop(request_id, None)
            or self._waiting.pop(request_id, None)
            or self._fetched.pop(request_id, None)
            or self._fetching.pop(request_id, None)
        ):
            self._release(sequence)
            self._decide_at_next_boundary(now_ns)
            return
        self._cut_stretch()
        self._leave_batch(sequence)
        self._release(sequence)

    def deliver(self, request_id: str, now_ns: int, *, has_come: bool) -> None:
        """Report the end of a fetch: the prompt's KV cache has arrived or, where `has_come` is false, never will, and
        the prompt is computed here. Ignored if the request has ended."""
        self._settle(now_ns - 1)
        sequence = self._fetching.pop(request_id, None)
        if sequence is None:
            return
        sequence.is_fetched = True
        if has_come:
            sequence.external_tokens = sequence.request.prompt_tokens - sequence.computed
            sequence.computed = sequence.request.prompt_tokens - 1
            self._fetched[request_id] = sequence
        else:
            sequence.computed = 0
            self._release(sequence)
            self._wait_first(sequence)
        self._decide_at_next_boundary(now_ns)

    def renew(self, request_id: str, until_ns: int, now_ns: int) -> bool:
        """Extend the lease on the blocks kept for a request at least until `until_ns`. False: none are kept."""
        self._settle(now_ns - 1)
        return self._leases.renew(request_id, until_ns)

    def let_go(self, request_id: str, now_ns: int) -> bool:
        """Release the blocks kept for a request, which were fetched or are not needed. False: none are kept."""
        self._settle(now_ns - 1)
        held = self._leases.end(request_id)
        if held is None:
            return False
        self._free(held, now_ns)
        return True

    def keeps(self, request_id: str) -> bool:
        """True if blocks are kept for a request, as of the last call that carried a time."""
        return request_id in self._leases

    @property
    def kept(self) -> int:
        """Number of requests whose blocks are kept."""
        return len(self._leases)

    def advance(self, now_ns: int) -> list[EngineOutput]:
        """Return all events up to and including `now_ns`, in order, that were not reported yet."""
        self._settle(now_ns)
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_change_ns(self) -> int | None:
        """Time of the next `advance`: at once if outputs wait; None when nothing will happen without a new request."""
        if self._outputs:
            return self._settled_ns + 1
        boundary_ns, lease_ns = self._next_boundary_ns(), self._leases.next_ns
        if lease_ns is None or (boundary_ns is not None and boundary_ns <= lease_ns):
            return boundary_ns
        return lease_ns

    def load(self) -> EngineLoad:
        """Gauges as of the last call that carried a time."""
        stretch = self._stretch
        ended = self._iterations_ended()
        held = self._blocks_held(ended)
        return EngineLoad(
            running=len(self._running),
            waiting=self._waiters,
            arriving=len(self._arriving),
            kv_usage=held / self._pool.total,
            blocks_held=held,
            prefix_query_tokens=self._prefix_query_tokens,
            prefix_hit_tokens=self._prefix_hit_tokens,
            preemptions=self._preemptions,
            rejections=self._rejections,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens + (0 if stretch is None else ended * len(stretch.batch)),
            finished=self._finished,
            iterations=self._iterations + ended,
            deferred=len(self._fetching),
            kept=len(self._leases),
            leases_expired=self._leases.expired,
            external_tokens=self._external_tokens,
        )

    def generated(self, request_id: str) -> int:
        """Output tokens of a request that exist, as of the last call that carried a time."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return 0
        is_written = sequence.is_decoding and sequence in self._running
        return sequence.generated + (self._iterations_ended() if is_written else 0)

    def cached_blocks(self, chain: bytes) -> int:
        """Leading blocks of a text, named as in a request, that are in the cache."""
        return self._pool.matched(chain, len(chain))[0]

    def occupancy(self) -> tuple[int, int, float]:
        """Running requests, waiting requests and share of blocks held: the part of `load` that a router reads."""
        return len(self._running), self._waiters, self._blocks_held(self._iterations_ended()) / self._pool.total

    @property
    def preemptions(self) -> int:
        """Number of preemptions so far."""
        return self._preemptions

    @property
    def _waiters(self) -> int:
        return len(self._waiting) + len(self._fetched)

    def _iterations_ended(self) -> int:
        """Iterations of the stretch in flight that are over and not yet booked."""
        stretch = self._stretch
        return 0 if stretch is None else min(stretch.ended_by(self._settled_ns), stretch.iterations - 1)

    def _blocks_held(self, ended: int) -> int:
        return self._pool.held + (0 if self._stretch is None else self._stretch.blocks_taken(ended))

    def _rejection(self, request: EngineRequest) -> Rejection | None:
        if request.prompt_tokens + request.output_tokens > self._config.context_tokens_max:
            return Rejection.TOO_LONG
        limit = self._config.queued_requests_max
        if limit is not None and self._waiters + len(self._arriving) >= limit:
            return Rejection.QUEUE_FULL
        return None

    def _settle(self, until_ns: int) -> None:
        assert until_ns >= self._settled_ns - 1, "time went backwards"
        while True:
            boundary_ns, lease_ns = self._next_boundary_ns(), self._leases.next_ns
            if lease_ns is not None and lease_ns <= until_ns and (boundary_ns is None or lease_ns <= boundary_ns):
                self._end_leases(lease_ns)
            elif boundary_ns is not None and boundary_ns <= until_ns:
                self._pass_boundary(boundary_ns)
            else:
                break
        self._settled_ns = max(self._settled_ns, until_ns)

    def _end_leases(self, at_ns: int) -> None:
        for request_id, held in self._leases.expire(at_ns):
            self._outputs.append(Expired(request_id, at_ns))
            self._free(held, at_ns)

    def _free(self, held: Holding, now_ns: int) -> None:
        """Release the blocks of an ended lease; waiting requests may find room."""
        self._pool.release(held)
        self._blocked = False
        if self._waiting:
            self._decide_at_next_boundary(now_ns)

    def _next_boundary_ns(self) -> int | None:
        return self._wake_ns if self._stretch is None else self._stretch.end_ns

    def _pass_boundary(self, now_ns: int) -> None:
        stretch = self._stretch
        if stretch is not None:
            self._store_ahead(stretch, stretch.iterations - 1)
            self._complete(stretch, stretch.iterations)
        self._wake_ns = None
        self._stretch = self._schedule(now_ns)

    def _decide_at_next_boundary(self, now_ns: int) -> None:
        """End the stretch at the first boundary not before `now_ns`: the queue changed, so a request may enter the
        batch."""
        stretch = self._stretch
        if stretch is not None:
            stretch.iterations = stretch.ended_by(now_ns - 1) + 1
        elif self._wake_ns is None:
            self._wake_ns = self._config.cost.next_start_ns(now_ns)

    def _cut_stretch(self) -> None:
        """Book the iterations that have ended and leave only the one in flight, whose blocks are taken already."""
        stretch = self._stretch
        assert stretch is not None
        ended = stretch.ended_by(self._settled_ns)
        assert ended < stretch.iterations
        begin_ns, end_ns = stretch.boundary_ns(ended), stretch.boundary_ns(ended + 1)
        if ended:
            self._store_ahead(stretch, ended)
            self._complete(stretch, ended)
        stretch.start_ns, stretch.pace = begin_ns, EvenPace(end_ns - begin_ns)
        stretch.iterations = 1
        stretch.allocations = []

    def _leave_batch(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        if self._stretch is not None and sequence.scheduled:
            self._stretch.batch.remove(sequence)

    def _schedule(self, now_ns: int) -> Stretch | None:
        self._waiting.update(self._arriving)
        self._arriving.clear()
        step = NextStep(now_ns, self._config.batch_tokens_max, self._config.prefill_chunk_tokens)
        self._schedule_running(step)
        self._admit_waiting(step)
        if not step.batch:
            is_held_up = self._blocked and (self._fetching or len(self._leases))
            assert not self._running, "an engine with work must run"
            assert not self._waiting or is_held_up, "an engine with work must run"
            self._config.cost.rest(now_ns)
            return None
        return self._start(step)

    def _schedule_running(self, step: NextStep) -> None:
        """Give each running sequence its tokens, oldest first; when blocks run out, preempt the youngest."""
        size = self._config.block_tokens
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            tokens = step.share(sequence)
            end = sequence.computed + tokens
            is_within_block = end <= sequence.held.blocks * size and end < (sequence.held.filled + 1) * size
            if not is_within_block and not self._make_room(sequence, end, step.now_ns):
                return
            step.take(sequence, tokens)
            position += 1

    def _make_room(self, sequence: Sequence, tokens: int, now_ns: int) -> bool:
        """Secure blocks for the first `tokens` tokens. False when the sequence itself was preempted."""
        while self._blocks_for(tokens) - sequence.held.blocks > self._pool.available:
            victim = self._running.pop()
            self._preempt(victim, now_ns)
            if victim is sequence:
                return False
        self._store(sequence, tokens)
        return True

    def _preempt(self, victim: Sequence, now_ns: int) -> None:
        self._release(victim)
        victim.computed = victim.scheduled = 0
        victim.preemptions += 1
        self._preemptions += 1
        self._wait_first(victim)
        self._outputs.append(Preempted(victim.request.request_id, now_ns))

    def _wait_first(self, sequence: Sequence) -> None:
        self._waiting[sequence.request.request_id] = sequence
        self._waiting.move_to_end(sequence.request.request_id, last=False)

    def _admit_waiting(self, step: NextStep) -> None:
        while self._fetched and step.has_room and len(self._running) < self._config.sequences_max:
            self._join(step, self._fetched.popitem(last=False)[1])
        while self._waiting and step.has_room and len(self._running) < self._config.sequences_max and not self._blocked:
            sequence = next(iter(self._waiting.values()))
            if not self._reuse_prefix(sequence):
                self._blocked = True
                return
            del self._waiting[sequence.request.request_id]
            if sequence.request.is_remote and not sequence.is_fetched:
                self._fetch(sequence, step.now_ns)
            else:
                self._join(step, sequence)

    def _join(self, step: NextStep, sequence: Sequence) -> None:
        """Add a sequence whose blocks are secured to the batch."""
        self._running.append(sequence)
        self._count_admission(sequence, step.now_ns)
        tokens = step.share(sequence)
        self._store(sequence, sequence.computed + tokens)
        step.take(sequence, tokens)

    def _fetch(self, sequence: Sequence, now_ns: int) -> None:
        """Reserve blocks for a remote prompt and ask for its KV cache; the sequence joins the batch once that has
        arrived."""
        self._hold(sequence, sequence.request.prompt_tokens)
        self._fetching[sequence.request.request_id] = sequence
        self._outputs.append(Fetching(sequence.request.request_id, now_ns, sequence.computed))

    def _reuse_prefix(self, sequence: Sequence) -> bool:
        """Start from the longest cached prefix, if all the rest of the prompt fits, as vLLM checks by default."""
        size = self._config.block_tokens
        matched, idle = self._pool.matched(sequence.held.chain, (sequence.target - 1) // size)
        if self._blocks_for(sequence.target) - matched > self._pool.available - idle:
            return False
        self._pool.reuse(sequence.held, matched)
        sequence.computed = matched * size
        return True

    def _count_admission(self, sequence: Sequence, now_ns: int) -> None:
        self._outputs.append(Admitted(sequence.request.request_id, now_ns, sequence.computed))
        if sequence.preemptions == 0:
            self._prefix_query_tokens += sequence.request.prompt_tokens
            external_tokens = sequence.external_tokens
            self._external_tokens += external_tokens
            self._prefix_hit_tokens += (
                sequence.request.prompt_tokens - external_tokens if external_tokens else sequence.computed
            )

    def _start(self, step: NextStep) -> Stretch:
        config = self._config
        pace = config.cost.pace(step.now_ns, step.batch, step.prefill_tokens)
        stretch = Stretch(step.now_ns, pace, 1, step.batch, [])
        if not config.stream_every_iteration and not step.prefill_tokens and self._admission_is_shut():
            self._lengthen(stretch)
        return stretch

    def _admission_is_shut(self) -> bool:
        """True if no request can enter the batch before a sequence leaves it or a new request comes."""
        if len(self._running) == self._config.sequences_max:
            return True
        return not self._fetched and (not self._waiting or self._blocked)

    def _lengthen(self, stretch: Stretch) -> None:
        """Add iterations until the first sequence finishes, but none that would run out of blocks."""
        size = self._config.block_tokens
        stretch.allocations = allocations = [0] * size
        for sequence in stretch.batch:
            allocations[-sequence.computed % size] += 1
        until_finish = min(sequence.remaining for sequence in stretch.batch) - 1
        cycles, blocks = divmod(self._pool.available, len(stretch.batch))
        extra = cycles * size
        while extra < until_finish and allocations[(extra + 1) % size] <= blocks:
            extra += 1
            blocks -= allocations[extra % size]
        stretch.iterations += min(extra, until_finish)

    def _store_ahead(self, stretch: Stretch, iterations: int) -> None:
        """Take and name the blocks of iterations 1 … `iterations`."""
        if not iterations:
            return
        size = self._config.block_tokens
        ends = [sequence.computed + iterations + 1 for sequence in stretch.batch]
        if not self._pool.are_new([(each.held, end // size) for each, end in zip(stretch.batch, ends, strict=True)]):
            self._store_in_order(stretch, iterations)
            return
        for sequence, end in zip(stretch.batch, ends, strict=True):
            self._hold(sequence, end)
            self._pool.publish_new(sequence.held, end // size)

    def _store_in_order(self, stretch: Stretch, iterations: int) -> None:
        """Take and name blocks in the order of single steps: the order decides which sequence names a block first and
        which blocks are evicted."""
        size = self._config.block_tokens
        changes = [
            (iteration, position)
            for position, sequence in enumerate(stretch.batch)
            for phase in (-sequence.computed % size, (-sequence.computed - 1) % size)
            for iteration in range(phase or size, iterations + 1, size)
        ]
        for iteration, position in sorted(changes):
            sequence = stretch.batch[position]
            self._store(sequence, sequence.computed + iteration + 1)

    def _store(self, sequence: Sequence, tokens: int) -> None:
        """Hold blocks for the first `tokens` tokens and name those that are full."""
        self._hold(sequence, tokens)
        self._pool.publish(sequence.held, tokens // self._config.block_tokens)

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        needed = self._blocks_for(tokens) - sequence.held.blocks
        if needed:
            self._pool.allocate(sequence.held, needed)

    def _complete(self, stretch: Stretch, iterations: int) -> None:
        """Book `iterations` ended iterations: their tokens exist, and sequences with all their tokens finish."""
        at_ns = stretch.boundary_ns(iterations)
        self._iterations += iterations
        is_quiet = not self._config.report_tokens
        for sequence in stretch.batch:
            request, generated = sequence.request, sequence.generated
            sequence.computed += sequence.scheduled + iterations - 1
            count = sequence.computed - request.prompt_tokens - generated + 1
            if is_quiet and generated and 0 < count < request.output_tokens - generated:
                sequence.generated = generated + count  # most sequences; equals `_generate` without output
                self._generation_tokens += count
            elif count > 0:
                self._generate(sequence, count, at_ns)

    def _generate(self, sequence: Sequence, count: int, at_ns: int) -> None:
        request = sequence.request
        if sequence.generated == 0:
            self._prompt_tokens += request.prompt_tokens
            self._outputs.append(FirstTokenMade(request.request_id, at_ns))
        elif self._config.report_tokens:
            self._outputs.append(TokensGenerated(request.request_id, at_ns, count))
        sequence.generated += count
        self._generation_tokens += count
        if sequence.remaining == 0:
            self._finish(sequence, at_ns)

    def _finish(self, sequence: Sequence, at_ns: int) -> None:
        request = sequence.request
        del self._sequences[request.request_id]
        self._running.remove(sequence)
        if request.lease_ns is None:
            self._release(sequence)
        else:
            self._leases.grant(request.request_id, sequence.held, at_ns + request.lease_ns)
        self._finished += 1
        self._outputs.append(Finished(request.request_id, at_ns, request.finish_reason))

    def _release(self, sequence: Sequence) -> None:
        self._pool.release(sequence.held)
        self._blocked = False

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._config.block_tokens)
