from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.barrier import Barrier
from loadgen.engine.blocks import Holding
from loadgen.engine.iteration_cost import IterationCost, KvCost, LinearCost
from loadgen.engine.model import EngineConfig
from loadgen.engine.sequences import EngineRequest, Sequence
from tests.support.iteration_costs import ExpertCost

COSTS: list[Callable[[], IterationCost]] = [
    lambda: LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10),
    lambda: KvCost(LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10), kv_token_ns=3),
    lambda: ExpertCost(base_ns=1_000, expert_ns=70),
    lambda: Barrier(1, base_ns=1_000, kv_token_ns=3).ranks[0],
]
CONFIG = EngineConfig(
    cost=COSTS[0](), kv_blocks=24, context_tokens_max=160, sequences_max=4, batch_tokens_max=40, prefill_chunk_tokens=32
)

batches = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=8)


def decoding(batch: list[tuple[int, int]], iteration: int) -> list[Sequence]:
    """Sequences with these prompts and generated tokens, this many iterations later."""
    return [
        Sequence(
            EngineRequest("a", prompt, 2_000), Holding(b""), prompt + tokens + iteration - 1, tokens + iteration, 1
        )
        for prompt, tokens in batch
    ]


@pytest.mark.parametrize("cost", COSTS)
@given(batch=batches, iterations=st.integers(0, 60))
def test_a_pace_tells_of_later_iterations_what_each_would_tell_of_itself(
    cost: Callable[[], IterationCost], batch: list[tuple[int, int]], iterations: int
) -> None:
    alone, now_ns = cost(), 5
    for iteration in range(iterations):
        now_ns += alone.pace(now_ns, decoding(batch, iteration), 0).duration_ns(1)

    assert cost().pace(5, decoding(batch, 0), 0).duration_ns(iterations) == now_ns - 5


@pytest.mark.parametrize("cost", COSTS)
@given(batch=batches, elapsed_ns=st.integers(0, 300_000))
def test_what_is_over_by_then_has_lasted_no_longer_and_one_more_would(
    cost: Callable[[], IterationCost], batch: list[tuple[int, int]], elapsed_ns: int
) -> None:
    pace = cost().pace(0, decoding(batch, 0), 0)
    ended = pace.ended_by(elapsed_ns)

    assert pace.duration_ns(ended) <= elapsed_ns < pace.duration_ns(ended + 1)


def test_the_linear_cost_has_a_term_for_each_sequence_and_for_each_token_of_prefill() -> None:
    pace = LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10).pace(0, decoding([(8, 1), (9, 1)], 0), 7)

    assert [pace.duration_ns(iterations) for iterations in range(3)] == [0, 1_270, 2_540]
