"""A small engine with a prefix cache, evictions, chunks and preemptions writes blocks in every order that a real one
may; in any order, a prompt's counts equal those of its tokens computed alone.
"""

from __future__ import annotations

import functools
import random
from collections import Counter as Tally
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from vllm_expert_counts.counting import Counter, Scheduled, slots_of
from vllm_expert_counts.ledger import Ledger
from vllm_expert_counts.rows import HostRows

BLOCK, BLOCKS, LAYERS, EXPERTS, TOP_K = 4, 12, 2, 5, 2
Tokens = tuple[int, ...]


@functools.cache
def gate(tokens: Tokens) -> list[list[int]]:
    """Experts that the last of these tokens picks, by layer; they depend on every token before it, as hidden
    states do.
    """
    rng = random.Random(repr(tokens))
    return [rng.sample(range(EXPERTS), TOP_K) for _ in range(LAYERS)]


def alone(prompt: Tokens) -> list[list[int]]:
    counts = np.zeros((LAYERS, EXPERTS), dtype=int)
    for end in range(1, len(prompt) + 1):
        for layer, experts in enumerate(gate(prompt[:end])):
            counts[layer, experts] += 1
    read: list[list[int]] = counts.tolist()
    return read


@dataclass
class Running:
    prompt: Tokens
    tokens: Tokens
    blocks: list[int]
    computed: int


@dataclass
class Engine:
    """Engine whose blocks are reused least recently used first, and identified by the tokens before and in them."""

    rng: random.Random
    counter: Counter
    free: list[int] = field(default_factory=lambda: list(range(BLOCKS)))
    cached: OrderedDict[Tokens, int] = field(default_factory=OrderedDict)
    held: Tally[int] = field(default_factory=Tally)
    running: dict[str, Running] = field(default_factory=dict)
    counts: dict[str, NDArray[np.uint32]] = field(default_factory=dict)
    hits: int = 0
    evictions: int = 0
    preemptions: int = 0

    def begin(self, request_id: str, tokens: Tokens, prompt: Tokens) -> None:
        blocks = []
        for end in range(BLOCK, len(tokens), BLOCK):  # the last token is always computed
            if tokens[:end] not in self.cached:
                break
            self.cached.move_to_end(tokens[:end])
            blocks.append(self.cached[tokens[:end]])
        for block in blocks:
            self.held[block] += 1
        self.hits += len(blocks)
        self.running[request_id] = Running(prompt, tokens, blocks, len(blocks) * BLOCK)

    def take(self) -> int | None:
        if self.free:
            return self.free.pop(0)
        for known, block in self.cached.items():
            if not self.held[block]:
                del self.cached[known]
                self.evictions += 1
                return block
        return None

    def schedule(self, request_id: str, tokens: int) -> Scheduled | None:
        request = self.running[request_id]
        while len(request.blocks) * BLOCK < request.computed + tokens:
            block = self.take()
            if block is None:
                return None
            self.held[block] += 1
            request.blocks.append(block)
        return Scheduled(request_id, request.computed, tokens, len(request.prompt), tuple(request.blocks), True)

    def step(self) -> None:
        batch = []
        for request_id in self.rng.sample(sorted(self.running), len(self.running)):
            left = len(self.running[request_id].tokens) - self.running[request_id].computed
            share = self.schedule(request_id, self.rng.randint(1, left))
            if share is None:
                self.preempt(request_id)
            else:
                batch.append(share)
        self.run([share for share in batch if share.request_id in self.running])

    def run(self, batch: list[Scheduled]) -> None:
        picks = [
            gate(self.running[each.request_id].tokens[: position + 1])
            for each in batch
            for position in range(each.start, each.end)
        ]
        shaped = np.array(picks, dtype=np.uint8).reshape(len(picks), LAYERS, TOP_K)
        read = self.counter.step(batch, shaped)
        assert not read.keys() & self.counts.keys(), "a prompt is read to its end once"
        self.counts |= {each: total() for each, total in read.items()}
        for each in batch:
            request = self.running[each.request_id]
            for end in range(BLOCK, each.end + 1, BLOCK):
                if end > each.start and request.tokens[:end] not in self.cached:
                    self.cached[request.tokens[:end]] = request.blocks[end // BLOCK - 1]
            request.computed = each.end
            if request.computed == len(request.tokens):
                request.tokens += (self.rng.randrange(3),)

    def release(self, request_id: str) -> Running:
        request = self.running.pop(request_id)
        known = set(self.cached.values())
        for block in request.blocks:
            self.held[block] -= 1
            if not self.held[block] and block not in known:
                self.free.append(block)
        return request

    def preempt(self, request_id: str) -> None:
        """Preempt a request: its generated tokens are computed again, behind its prompt."""
        request = self.release(request_id)
        self.preemptions += 1
        self.begin(request_id, request.tokens, request.prompt)

    def end(self, request_id: str) -> None:
        self.release(request_id)
        self.counter.end([request_id])

    def reset_cache(self) -> None:
        self.free += [block for block in self.cached.values() if not self.held[block]]
        self.cached.clear()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_order_a_prompt_counts_as_if_it_were_read_alone(seed: int) -> None:
    rng = random.Random(seed)
    counter = Counter(Ledger(BLOCKS, BLOCK), HostRows(BLOCKS, BLOCK, LAYERS, EXPERTS))
    engine = Engine(rng, counter)
    prompts: dict[str, Tokens] = {}
    said: list[Tokens] = [()]
    for number in range(250):
        if len(engine.running) < 3:
            shared = rng.choice(said)[:10]
            prompt = shared + tuple(rng.randrange(3) for _ in range(rng.randint(1, 12)))
            prompts[str(number)] = prompt
            engine.begin(str(number), prompt, prompt)
        engine.step()
        for request_id, request in list(engine.running.items()):
            if len(request.tokens) > len(request.prompt) + 3 or len(request.tokens) > (BLOCKS - 1) * BLOCK:
                said.append(request.tokens)
                engine.end(request_id)
        if rng.random() < 0.02:
            engine.reset_cache()
    assert len(engine.counts) > 25
    assert min(engine.hits, engine.evictions, engine.preemptions) > 10, "nothing of what it is for has happened"
    assert {key: counts.tolist() for key, counts in engine.counts.items()} == {
        key: alone(prompts[key]) for key in engine.counts
    }
    unread = set(prompts) - set(engine.counts) - set(engine.running)
    assert not unread, "each prompt is told of, once it is read"


def test_what_was_loaded_from_elsewhere_is_not_told() -> None:
    counter = Counter(Ledger(BLOCKS, BLOCK), HostRows(BLOCKS, BLOCK, LAYERS, EXPERTS))
    picks = np.zeros((2, LAYERS, TOP_K), dtype=np.uint8)
    assert counter.step([Scheduled("a", BLOCK, 2, BLOCK + 2, (3, 5), True)], picks) == {}


def test_nobody_pays_for_what_nobody_asks_for() -> None:
    counter = Counter(Ledger(BLOCKS, BLOCK), HostRows(BLOCKS, BLOCK, LAYERS, EXPERTS))
    picks = np.zeros((2, LAYERS, TOP_K), dtype=np.uint8)
    assert counter.step([Scheduled("a", 0, 2, 2, (3,), False)], picks) == {}


def test_blocks_that_wait_for_an_answer_are_not_the_prompts() -> None:
    counter = Counter(Ledger(BLOCKS, BLOCK), HostRows(BLOCKS, BLOCK, LAYERS, EXPERTS))
    picks = np.zeros((2, LAYERS, TOP_K), dtype=np.uint8)
    assert list(counter.step([Scheduled("a", 0, 2, 2, (3, 5), True)], picks)) == ["a"]


def test_who_is_over_is_forgotten() -> None:
    """Another request may have the same id."""
    counter = Counter(Ledger(BLOCKS, BLOCK), HostRows(BLOCKS, BLOCK, LAYERS, EXPERTS))
    picks = np.zeros((2, LAYERS, TOP_K), dtype=np.uint8)
    again = [Scheduled("a", 0, 2, 2, (3,), True)]
    assert [list(counter.step(again, picks)) for _ in range(2)] == [["a"], []]
    counter.end(["a"])
    assert list(counter.step(again, picks)) == ["a"]


def test_slots_follow_the_blocks_of_each_request() -> None:
    batch = [Scheduled("a", 3, 3, 9, (7, 2), True), Scheduled("b", 0, 1, 1, (4,), True)]
    assert slots_of(batch, BLOCK).tolist() == [7 * BLOCK + 3, 2 * BLOCK, 2 * BLOCK + 1, 4 * BLOCK]
    assert slots_of([], BLOCK).tolist() == []


def test_a_block_that_is_copied_is_gone_on_with() -> None:
    counter = Counter(Ledger(BLOCKS, BLOCK), HostRows(BLOCKS, BLOCK, LAYERS, EXPERTS))
    picks = np.zeros((3, LAYERS, TOP_K), dtype=np.uint8)
    counter.step([Scheduled("a", 0, 2, 2, (3,), False)], picks[:2])
    counter.copy(3, 7)
    read = counter.step([Scheduled("b", 2, 1, 3, (7,), True)], picks[:1])
    assert read["b"]().tolist() == [[3 * TOP_K, 0, 0, 0, 0]] * LAYERS
