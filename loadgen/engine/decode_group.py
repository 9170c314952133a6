"""Model of decode workers that step in lockstep: data-parallel ranks of one model, each with a batch of its own, where
every step ends for all when the slowest rank is done. It is pure, and independent of gateways and text.

A step of a rank takes `base_ns + kv_token_ns * (KV tokens of its batch)`; ranks with nothing to run step along. Each
request of a batch gains a token per step, and with it a KV token. While no request enters or leaves, all further times
follow from the present loads, and the model jumps over those steps (`envelope.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from loadgen.engine.envelope import Envelope
from loadgen.engine.experts import ExpertLoad, Packed
from loadgen.engine.model import Finished, FirstTokenMade
from loadgen.engine.vocabulary import FinishReason, Rejection


@dataclass(frozen=True, slots=True)
class DecodeGroupConfig:
    """Number of ranks, and the size and speed of each."""

    ranks: int
    batch_max: int
    """Requests that a rank runs at once: B."""
    base_ns: int
    """Fixed part of a step's duration, whatever the batch: t0."""
    kv_token_ns: int
    """Nanoseconds per KV token that a step reads: one over the bandwidth, in tokens."""
    kv_tokens: int = 0
    """Capacity of one rank's cache; 0: unlimited. Room is reserved for a request's whole answer, so no request is
    preempted; requests without room wait."""

    def __post_init__(self) -> None:
        assert self.ranks > 0
        assert self.batch_max > 0
        assert self.base_ns > 0
        assert self.kv_token_ns > 0
        assert self.kv_tokens >= 0


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive steps over the same batches, reported once they are over."""

    number: int
    """Number of the first of these steps, counted from 0."""
    steps: int
    begin_ns: int
    end_ns: int
    running: list[int]
    """Requests in the batch of each rank, in all of these steps."""
    kv_tokens: list[int]
    """KV tokens that each rank read in the first of these steps; each further step reads one more for each running
    request."""
    envelope: Envelope
    """Duration of each of these steps."""
    experts: list[float]
    """Distinct experts that each rank's batch read, per step and layer; empty for a model without experts."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Step in flight as it was when it began; its duration is fixed."""

    envelope: Envelope
    running: list[int]
    kv_tokens: list[int]
    experts: list[float]


@dataclass(frozen=True, slots=True)
class Pulled:
    """The KV cache of a request that needed a transfer has arrived; the prefill worker may release it."""

    request_id: str
    at_ns: int


DecodeOutput = Pulled | FirstTokenMade | Finished


class _Request:
    __slots__ = (
        "absence",
        "final_tokens",
        "is_alive",
        "is_held",
        "last_step",
        "output_tokens",
        "rank",
        "request_id",
        "transfer_ns",
    )

    def __init__(self, request_id: str, rank: int, prompt_tokens: int, output_tokens: int, transfer_ns: int) -> None:
        self.absence: Packed | None = None
        """Contribution to its batch's sum of experts (`experts.log_absence`)."""
        self.request_id = request_id
        self.rank = rank
        self.output_tokens = output_tokens
        self.final_tokens = prompt_tokens + output_tokens
        """Tokens of prompt and whole answer."""
        self.transfer_ns = transfer_ns
        self.last_step = -1
        """Number of steps after which the answer is complete. -1: the request is not running yet."""
        self.is_held = False
        """True once room in the cache is reserved."""
        self.is_alive = True


class _Rank:
    """One worker. The duration of its next step is in the group's own lists."""

    __slots__ = (
        "arrived",
        "base_ns",
        "held_tokens",
        "is_up",
        "kv_token_ns",
        "parked_tokens",
        "pulling",
        "ready",
        "running",
        "slowed_percent",
    )

    def __init__(self, config: DecodeGroupConfig) -> None:
        self.base_ns = config.base_ns
        self.kv_token_ns = config.kv_token_ns
        self.arrived: deque[_Request] = deque()
        """Requests that wait for room in the cache."""
        self.pulling = 0
        self.ready: deque[_Request] = deque()
        """Requests whose KV cache has arrived and that wait for a slot in the batch."""
        self.running = 0
        self.held_tokens = 0
        self.parked_tokens = 0
        """Tokens of prompts that have room reserved and do not run yet."""
        self.is_up = True
        self.slowed_percent = 100


class DecodeGroup:
    """Model of one group. Calls must not go back in time; outputs wait for the next `advance`.

    Ranks act at the boundaries between steps only. A request admitted at a boundary takes part in the step that begins
    there, even if `advance` has reached that time.
    """

    def __init__(
        self,
        config: DecodeGroupConfig,
        on_steps: Callable[[Steps], object] | None = None,
        experts: list[ExpertLoad] | None = None,
    ) -> None:
        """`on_steps` is called with all completed steps, stretch by stretch. `experts`: one for each rank; ranks that
        share their experts share one object. None: the model has no experts."""
        self.config = config
        self._experts = experts
        assert experts is None or len(experts) == config.ranks, "one for each rank"
        self._have_experts_changed = False
        self._read_experts: list[float] = []
        self.steps = 0
        """Number of completed steps."""
        self._on_steps = on_steps
        self._ranks = [_Rank(config) for _ in range(config.ranks)]
        self._first_ns = [config.base_ns] * config.ranks
        """Duration of the next step, or of the one in flight, by rank."""
        self._growth_ns = [0] * config.ranks
        """Increase of that duration with each further step, by rank."""
        self._requests: dict[str, _Request] = {}
        self._pulls: list[tuple[int, int, _Request]] = []
        """Heap of transfers, by the time at which the KV cache will have arrived."""
        self._ends: list[tuple[int, int, _Request]] = []
        """Heap of running requests, by the step with which the answer will be complete; all ranks count steps alike."""
        self._entered: list[_Request] = []
        """Requests whose first step is running."""
        self._serial = 0
        self._running = 0
        self._begin_ns = 0
        """Start of the next step, or of the one in flight. Meaningless while no request runs."""
        self._begun: _Begun | None = None
        """Step in flight as it began, if a load changed since."""
        self._is_due = False
        """True if a request became ready in the middle of a step: it enters a batch at the next boundary."""
        self._envelope: Envelope | None = None
        """Durations of the steps until the next event, from `_begin_ns` on. None: not computed yet."""
        self._now_ns = 0
        self._outputs: list[DecodeOutput] = []

    # Commands

    def admit(
        self,
        request_id: str,
        rank: int,
        prompt_tokens: int,
        output_tokens: int,
        now_ns: int,
        *,
        transfer_ns: int = 0,
        absence: Packed | None = None,
    ) -> Rejection | None:
        """Queue a request whose prompt has been computed elsewhere, and whose KV cache takes `transfer_ns` to transfer
        once there is room for it; or return the reason for its rejection. `absence`: experts, from
        `experts.log_absence`."""
        assert (absence is None) == (self._experts is None), "experts are of all requests or of none"
        assert request_id not in self._requests, "request id in use"
        assert prompt_tokens > 0
        assert output_tokens > 0
        assert self._ranks[rank].is_up, "only a rank that is there is asked"
        self._move_to(now_ns)
        if self.config.kv_tokens and prompt_tokens + output_tokens > self.config.kv_tokens:
            return Rejection.TOO_LONG
        request = _Request(request_id, rank, prompt_tokens, output_tokens, transfer_ns)
        request.absence = absence
        self._requests[request_id] = request
        self._ranks[rank].arrived.append(request)
        self._pull(rank)
        self._enter(rank)
        return None

    def abort(self, request_id: str, now_ns: int) -> None:
        """Drop a request and free what it holds. No effect on one that has ended."""
        self._move_to(now_ns)
        request = self._requests.get(request_id)
        if request is not None:
            self._drop(request)
            self._pull(request.rank)
            self._enter(request.rank)

    def advance(self, now_ns: int) -> list[DecodeOutput]:
        """Return all events up to and including `now_ns`, in order, that were not reported yet."""
        self._move_to(now_ns)
        outputs, self._outputs = self._outputs, []
        return outputs

    def look(self, now_ns: int) -> None:
        """Bring the observable state up to `now_ns`. Events are kept for the next `advance`."""
        self._move_to(now_ns)

    def next_change_ns(self) -> int | None:
        """Time at which the next first token, end or entry is due, or now if outputs wait. None when nothing will
        happen without a new request."""
        return self._now_ns if self._outputs else self._next_ns()

    def lose_rank(self, rank: int, now_ns: int) -> list[str]:
        """Remove a rank and drop its requests, while the others go on. Returns the dropped requests' ids."""
        self._move_to(now_ns)
        lost = [request for request in self._requests.values() if request.rank == rank]
        for request in lost:
            self._drop(request)
        self._pin()
        self._ranks[rank].is_up = False
        self._first_ns[rank] = self._growth_ns[rank] = 0
        return [request.request_id for request in lost]

    def return_rank(self, rank: int, now_ns: int) -> None:
        """Bring back a lost rank, empty."""
        self._move_to(now_ns)
        self._pin()
        self._ranks[rank].is_up = True
        self._ranks[rank].base_ns = self._base_ns(rank)
        self._first_ns[rank] = self._ranks[rank].base_ns

    def slow_down(self, rank: int, percent: int, now_ns: int) -> None:
        """Scale the durations of a rank's steps to `percent` of normal from the next step on; the other ranks wait for
        it."""
        assert percent > 0
        self._move_to(now_ns)
        self._pin()
        state = self._ranks[rank]
        tokens = self.kv_tokens(rank)
        state.slowed_percent = percent
        state.base_ns = self._base_ns(rank)
        state.kv_token_ns = max(1, self.config.kv_token_ns * percent // 100)
        if state.is_up:
            self._first_ns[rank] = state.base_ns + tokens * state.kv_token_ns
            self._growth_ns[rank] = state.running * state.kv_token_ns

    def _base_ns(self, rank: int) -> int:
        """Duration of a rank's step apart from reading keys and values, experts included."""
        experts_ns = 0 if self._experts is None else self._experts[rank].step_ns()
        return max(1, (self.config.base_ns + experts_ns) * self._ranks[rank].slowed_percent // 100)

    def _weigh_experts(self) -> None:
        """Recompute the ranks' step durations after requests entered or left, which changed the experts read."""
        assert self._experts is not None, "asked only where there are some"
        self._have_experts_changed = False
        for rank, state in enumerate(self._ranks):
            if state.is_up:
                base_ns = self._base_ns(rank)
                self._first_ns[rank] += base_ns - state.base_ns
                state.base_ns = base_ns
        self._read_experts = [load.active_mean() for load in self._experts]

    # Observable state, as of the last call that carried a time

    def running(self, rank: int) -> int:
        return self._ranks[rank].running

    def waiting(self, rank: int) -> int:
        """Requests that wait for room in the cache, for their KV caches or for a slot in the batch: what vLLM counts in
        `vllm:num_requests_waiting`."""
        state = self._ranks[rank]
        return len(state.arrived) + state.pulling + len(state.ready)

    def pulling(self, rank: int) -> int:
        """Requests whose KV caches are being transferred."""
        return self._ranks[rank].pulling

    def kv_tokens(self, rank: int) -> int:
        """KV tokens that the rank's next step reads, or the one in flight: L_g."""
        state = self._ranks[rank]
        return (self._first_ns[rank] - state.base_ns) // state.kv_token_ns if state.is_up else 0

    def cached_tokens(self, rank: int) -> int:
        """Tokens in the rank's cache, or being transferred there."""
        return self.kv_tokens(rank) + self._ranks[rank].parked_tokens

    def held_tokens(self, rank: int) -> int:
        """Tokens of reserved room in the rank's cache."""
        return self._ranks[rank].held_tokens

    def has(self, request_id: str) -> bool:
        return request_id in self._requests

    def generated(self, request_id: str) -> int:
        """Tokens of an answer that exist."""
        request = self._requests[request_id]
        return 0 if request.last_step < 0 else self.steps + request.output_tokens - request.last_step

    @property
    def alive(self) -> int:
        """Number of requests accepted and not ended."""
        return len(self._requests)

    # Time

    def _next_ns(self) -> int | None:
        if self._is_stepping:
            envelope = self._known_envelope()
            return self._begin_ns + envelope.duration_ns(envelope.steps)
        self._forget_the_dropped()
        return self._pulls[0][0] if self._pulls else None

    @property
    def _is_stepping(self) -> bool:
        return self._running > 0 or self._begun is not None

    def _move_to(self, now_ns: int) -> None:
        """Process all events up to `now_ns`, and count the steps that are over by then."""
        assert now_ns >= self._now_ns, "time went backwards"
        if now_ns == self._now_ns:
            return
        while (next_ns := self._next_ns()) is not None and next_ns <= now_ns:
            self._pass(next_ns)
        self._now_ns = now_ns
        if self._is_stepping:
            envelope = self._known_envelope()
            ended = envelope.ended_by(now_ns - self._begin_ns)
            if ended:
                self._count(envelope, ended)
        self._take_in_what_came()

    def _pass(self, at_ns: int) -> None:
        """Process the events due at this boundary."""
        if self._is_stepping:
            envelope = self._known_envelope()
            self._count(envelope, envelope.steps)
        self._begin_ns = self._now_ns = at_ns
        entered, self._entered = self._entered, []
        self._outputs += [FirstTokenMade(each.request_id, at_ns) for each in entered if each.is_alive]
        self._take_in_what_came()
        self._end_answers()
        if self._is_due:
            self._is_due = False
            for rank in range(len(self._ranks)):
                self._enter(rank)

    def _take_in_what_came(self) -> None:
        while self._pulls and self._pulls[0][0] <= self._now_ns:
            self._arrive(heappop(self._pulls)[2])

    def _count(self, envelope: Envelope, steps: int) -> None:
        end_ns = self._begin_ns + envelope.duration_ns(steps)
        if self._on_steps is not None:
            self._on_steps(self._told(envelope, steps, end_ns))
        growth_ns = self._growth_ns
        if steps == 1:
            self._first_ns = [first + growth for first, growth in zip(self._first_ns, growth_ns, strict=True)]
        else:
            self._first_ns = [first + steps * growth for first, growth in zip(self._first_ns, growth_ns, strict=True)]
        self.steps += steps
        self._begin_ns = end_ns
        self._begun = None
        self._envelope = None

    def _told(self, envelope: Envelope, steps: int, end_ns: int) -> Steps:
        begun = self._begun
        running = self._batches() if begun is None else begun.running
        kv_tokens = self._reads() if begun is None else begun.kv_tokens
        experts = self._read_experts if begun is None else begun.experts
        return Steps(self.steps, steps, self._begin_ns, end_ns, running, kv_tokens, envelope, experts)

    def _batches(self) -> list[int]:
        return [rank.running for rank in self._ranks]

    def _reads(self) -> list[int]:
        return [
            (first_ns - rank.base_ns) // rank.kv_token_ns if rank.is_up else 0
            for rank, first_ns in zip(self._ranks, self._first_ns, strict=True)
        ]

    def _known_envelope(self) -> Envelope:
        if self._begun is not None:
            return self._begun.envelope
        if self._envelope is None:
            if self._have_experts_changed:
                self._weigh_experts()
            self._envelope = Envelope(self._first_ns, self._growth_ns, self._horizon())
        return self._envelope

    def _horizon(self) -> int:
        """Number of steps until the next event."""
        if self._is_due or self._entered:
            return 1
        self._forget_the_dropped()
        until_end = self._ends[0][0] - self.steps
        if until_end == 1 or not self._pulls:
            return until_end
        ways = Envelope(self._first_ns, self._growth_ns, until_end)
        before = ways.ended_by(self._pulls[0][0] - self._begin_ns - 1)  # the next boundary is not before the arrival
        return min(until_end, before + 1)

    def _forget_the_dropped(self) -> None:
        while self._ends and not self._ends[0][2].is_alive:
            heappop(self._ends)
        while self._pulls and not self._pulls[0][2].is_alive:
            heappop(self._pulls)

    def _pin(self) -> None:
        """Fix the duration of the step in flight and discard the forecast of later steps, before the loads change."""
        if self._is_stepping and self._begun is None and self._begin_ns < self._now_ns:
            lasts_ns = self._known_envelope().duration_ns(1)
            batches, reads = self._batches(), self._reads()
            self._begun = _Begun(Envelope([lasts_ns], [0], 1), batches, reads, self._read_experts)
        self._envelope = None

    # Requests

    def _end_answers(self) -> None:
        """Finish the requests whose answers are complete with the step that is over."""
        touched: list[int] = []
        while self._ends and self._ends[0][0] <= self.steps:
            request = heappop(self._ends)[2]
            if request.is_alive:
                self._outputs.append(Finished(request.request_id, self._now_ns, FinishReason.LENGTH))
                self._leave(request)
                touched.append(request.rank)
        for rank in touched:
            self._pull(rank)
            self._enter(rank)

    def _pull(self, rank: int) -> None:
        """Reserve room for waiting requests, in order, while there is any, and start their transfers."""
        state = self._ranks[rank]
        while state.arrived and self._has_room(state, state.arrived[0]):
            request = state.arrived.popleft()
            request.is_held = True
            state.held_tokens += request.final_tokens
            state.parked_tokens += request.final_tokens - request.output_tokens
            if request.transfer_ns:
                state.pulling += 1
                self._serial += 1
                self._envelope = None
                heappush(self._pulls, (self._now_ns + request.transfer_ns, self._serial, request))
            else:
                state.ready.append(request)

    def _has_room(self, state: _Rank, request: _Request) -> bool:
        return not self.config.kv_tokens or state.held_tokens + request.final_tokens <= self.config.kv_tokens

    def _arrive(self, request: _Request) -> None:
        if request.is_alive:
            state = self._ranks[request.rank]
            state.pulling -= 1
            state.ready.append(request)
            self._outputs.append(Pulled(request.request_id, self._now_ns))
            self._enter(request.rank)

    def _enter(self, rank: int) -> None:
        """Move ready requests into the batch while it has slots, at a boundary between steps."""
        state = self._ranks[rank]
        if not state.ready or state.running >= self.config.batch_max:
            return
        if self._is_stepping and self._begin_ns < self._now_ns:
            self._is_due = True
            self._pin()
            return
        self._begin_ns = self._now_ns
        while state.ready and state.running < self.config.batch_max:
            self._run(state, state.ready.popleft())

    def _run(self, state: _Rank, request: _Request) -> None:
        request.last_step = self.steps + request.output_tokens
        self._serial += 1
        heappush(self._ends, (request.last_step, self._serial, request))
        state.running += 1
        self._running += 1
        prompt_tokens = request.final_tokens - request.output_tokens
        state.parked_tokens -= prompt_tokens
        self._first_ns[request.rank] += prompt_tokens * state.kv_token_ns
        self._growth_ns[request.rank] += state.kv_token_ns
        self._entered.append(request)
        self._envelope = None
        if self._experts is not None and request.absence is not None:
            self._experts[request.rank].enter(request.request_id, request.absence)
            self._have_experts_changed = True

    def _leave(self, request: _Request) -> None:
        """Take a running request out of the batch, from the next step on."""
        state = self._ranks[request.rank]
        tokens = request.final_tokens - max(0, request.last_step - self.steps)
        self._first_ns[request.rank] -= tokens * state.kv_token_ns
        self._growth_ns[request.rank] -= state.kv_token_ns
        state.running -= 1
        self._running -= 1
        if self._experts is not None:
            self._experts[request.rank].leave(request.request_id)
            self._have_experts_changed = True
        self._forget(request)

    def _drop(self, request: _Request) -> None:
        state = self._ranks[request.rank]
        if request.last_step >= 0:
            self._pin()
            self._leave(request)
            if request in self._entered:
                self._entered.remove(request)
            return
        if not request.is_held:
            state.arrived.remove(request)
            self._forget(request)
            return
        state.parked_tokens -= request.final_tokens - request.output_tokens
        if request in state.ready:
            state.ready.remove(request)
        else:
            state.pulling -= 1
            self._envelope = None
        self._forget(request)

    def _forget(self, request: _Request) -> None:
        request.is_alive = False
        del self._requests[request.request_id]
        if request.is_held:
            self._ranks[request.rank].held_tokens -= request.final_tokens
