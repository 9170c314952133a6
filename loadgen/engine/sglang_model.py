"""Engine that schedules as SGLang does: prompts first, admission by a reserve of KV cache for tokens to come, and
retraction of the requests that have generated least where the reserve was too small.

Rules are those of SGLang's scheduler, first come, first served. A request's limit of output tokens is taken to be the
length of its answer, as in benchmarks that ignore the end of text.
"""

from __future__ import annotations

from loadgen.engine.model import EngineConfig, EngineModel, NewTokenReservation, NextStep, Stretch
from loadgen.engine.sequences import Sequence


class SglangModel(EngineModel):
    """Model of one SGLang engine."""

    def __init__(self, config: EngineConfig) -> None:
        assert config.reservation is not None
        super().__init__(config)
        self._reservation: NewTokenReservation = config.reservation
        self._ratio = config.reservation.ratio_first
        self._ratio_since = 0
        """Number of iterations at which the ratio was set."""
        self._admitted: set[Sequence] = set()
        """Sequences that the present step admits."""

    @property
    def ratio(self) -> float:
        """Share of the tokens to come for which KV cache is kept free."""
        rules = self._reservation
        fall = (rules.ratio_first - rules.ratio_min) / rules.decay_iterations
        return max(rules.ratio_min, self._ratio - fall * (self._iterations - self._ratio_since))

    def _schedule(self, now_ns: int) -> Stretch | None:
        self._waiting.update(self._arriving)
        self._arriving.clear()
        step = NextStep(now_ns, self._config.batch_tokens_max, self._config.prefill_chunk_tokens)
        for sequence in self._running:
            sequence.scheduled = 0
        self._read_prompts(step)
        if not step.batch:
            self._write_tokens(step)
        if not step.batch:
            is_held_up = self._fetching or len(self._leases)
            assert not self._running, "an engine with work must run"
            assert not self._waiting or is_held_up, "an engine with work must run"
            self._set_ratio(self._reservation.ratio_first)
            self._config.cost.rest(now_ns)
            return None
        return self._start(step)

    def _read_prompts(self, step: NextStep) -> None:
        """Schedule prompts alone: the rest of one that was begun, then waiting ones that fit beside the reserve."""
        for sequence in self._running:
            if not sequence.is_decoding:
                tokens = step.share(sequence)
                if self._blocks_for(sequence.computed + tokens) - sequence.held.blocks <= self._pool.available:
                    self._store(sequence, sequence.computed + tokens)
                    step.take(sequence, tokens)
        self._blocked = False
        self._admitted.clear()
        self._admit_waiting(step)

    def _reuse_prefix(self, sequence: Sequence) -> bool:
        """Start from the longest cached prefix, if the rest of the prompt and the answer fit beside the reserve."""
        size = self._config.block_tokens
        matched, idle = self._pool.matched(sequence.held.chain, (sequence.target - 1) // size)
        needed = self._blocks_for(sequence.target + self._to_come(sequence)) - matched
        if needed * size > (self._pool.available - idle) * size - self._reserved_tokens():
            return False
        self._pool.reuse(sequence.held, matched)
        sequence.computed = matched * size
        self._admitted.add(sequence)
        return True

    def _reserved_tokens(self) -> float:
        """Tokens kept free for the batch: the rest of each prompt, and a share of what is to come, or all of it for
        those that were just admitted."""
        ratio, reserved = self.ratio, 0.0
        for sequence in (*self._running, *self._fetching.values(), *self._fetched.values()):
            rest = max(0, self._blocks_for(sequence.target) - sequence.held.blocks) * self._config.block_tokens
            reserved += rest + (1.0 if sequence in self._admitted else ratio) * self._to_come(sequence)
        return reserved

    def _to_come(self, sequence: Sequence) -> int:
        return min(sequence.remaining, self._reservation.tokens_max)

    def _write_tokens(self, step: NextStep) -> None:
        """Schedule one token of each sequence, once there is room for all of them."""
        if self._blocks_for_next() > self._pool.available:
            self._retract(step.now_ns)
        for sequence in self._running:
            if sequence.is_decoding:
                self._store(sequence, sequence.computed + 1)
                step.take(sequence, 1)

    def _blocks_for_next(self, tokens: int = 1) -> int:
        """Blocks that the batch needs for so many more tokens of each sequence."""
        decoding = [each for each in self._running if each.is_decoding]
        return sum([max(0, self._blocks_for(each.computed + tokens) - each.held.blocks) for each in decoding])

    def _retract(self, now_ns: int) -> None:
        """Send back to the queue those that have generated least, the longest prompts first, until there is room for a
        while."""
        order = sorted(self._running, key=lambda each: (-each.generated, each.request.prompt_tokens))
        while len(order) > 1:
            victim = order.pop()
            self._running.remove(victim)
            self._preempt(victim, now_ns)
            self._waiting.move_to_end(victim.request.request_id)
            if self._blocks_for_next(self._reservation.retract_iterations) <= self._pool.available:
                break
        ahead = sum([each.generated + self._reservation.retract_iterations for each in order])
        whole = sum([each.generated + self._to_come(each) for each in order])
        self._set_ratio(min(1.0, ahead / whole))

    def _set_ratio(self, ratio: float) -> None:
        self._ratio = ratio
        self._ratio_since = self._iterations

    def _admission_is_shut(self) -> bool:
        return len(self._running) == self._config.sequences_max or not (self._waiting or self._fetched)


def engine_model(config: EngineConfig) -> EngineModel:
    """Model of an engine, by the scheduler that its configuration names."""
    return EngineModel(config) if config.reservation is None else SglangModel(config)
