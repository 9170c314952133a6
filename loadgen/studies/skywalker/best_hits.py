"""Fig. 6: hit rates of consistent hashing beside the best that any placement could have, worked out without engines.

Caches forget nothing and requests come one after another, so that only the place of a request counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from gateway.core.placement.hash_ring import HashRing
from loadgen.engine.blocks import NAME_BYTES
from loadgen.engine.tokens import ANSWER_BEGINS, ANSWER_ENDS, chat_turn
from loadgen.simulator.prompts import Prompt, empty_prompt, reply_text
from loadgen.simulator.scenario import Scenario
from loadgen.workload import Program

_BLOCK_BYTES = 64
"""Bytes of a block of 16 tokens, as engines have them."""
_PROGRAMS = 5
"""Programs of each user."""
_VIRTUAL_NODES = 160


@dataclass(frozen=True, slots=True)
class BestHits:
    """Shares of the prompts' tokens that are found in a cache."""

    hashed: float
    """Share where a program's key leads to one replica."""
    best: float
    """Share where each request is at the replica that has most of it."""


def best_hits(scenario: Scenario) -> BestHits:
    """Hit rates on a scenario's workloads and replicas."""
    replicas = sum(region.replicas or 0 for region in scenario.regions.values())
    ring = HashRing(_VIRTUAL_NODES)
    for number in range(replicas):
        ring.add(number, f"replica-{number}")
    caches: list[set[bytes]] = [set() for _ in range(replicas)]
    everywhere: set[bytes] = set()
    asked = hashed = best = 0
    for program in _programs(scenario):
        slot = ring.owner(program.session_key, (1 << replicas) - 1)
        assert slot is not None, "there are replicas"
        for prompt, whole in _requests(program, scenario.model):
            asked += prompt.size_bytes
            hashed += _BLOCK_BYTES * _found(prompt, caches[slot])
            best += _BLOCK_BYTES * _found(prompt, everywhere)
            names = _names(whole)
            caches[slot].update(names)
            everywhere.update(names)
    return BestHits(hashed / asked, best / asked)


def _programs(scenario: Scenario) -> Iterator[Program]:
    """Programs of all users, who take turns."""
    users = [
        scenario.workload_of(number).programs(f"{section.region}/{user}")
        for number, section in enumerate(scenario.clients)
        for user in range(section.clients or 0)
    ]
    for _ in range(_PROGRAMS):
        for programs in users:
            yield from islice(programs, 1)


def _requests(program: Program, model: str) -> Iterator[tuple[Prompt, Prompt]]:
    """Prompt of each step, and the same with its answer."""
    opening = empty_prompt(model, program.tenant, _BLOCK_BYTES)
    if program.opening:
        opening = opening.followed_by(chat_turn("system", program.opening))
    said: dict[int, Prompt] = {}
    for number, step in enumerate(program.steps):
        question = chat_turn("user", step.text) + ANSWER_BEGINS
        before, said_now = (opening, question) if step.after is None else (said[step.after], ANSWER_ENDS + question)
        prompt = before.followed_by(said_now)
        said[number] = prompt.followed_by(reply_text(f"{program.program_id}#{number}", step.output_tokens))
        yield prompt, said[number]


def _names(prompt: Prompt) -> list[bytes]:
    """Names of the full blocks; each stands for all text up to its end."""
    return [prompt.names[at : at + NAME_BYTES] for at in range(0, len(prompt.names), NAME_BYTES)]


def _found(prompt: Prompt, cache: set[bytes]) -> int:
    """Blocks from the prompt's beginning that are in a cache."""
    for number, name in enumerate(names := _names(prompt)):
        if name not in cache:
            return number
    return len(names)
