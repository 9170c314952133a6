from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.blocks import Holding
from loadgen.engine.iteration_cost import IterationCost, LinearCost
from loadgen.engine.model import EngineConfig, EngineModel, EngineOutput, Finished, FirstToken, TokensGenerated
from loadgen.engine.sequences import EngineRequest, Sequence
from tests.support.iteration_costs import Barrier, ExpertCost, KvCost

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
    """These prompts and tokens of their answers, so many iterations later."""
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


Pushes = list[tuple[int, int, int, int, bool]]
"""After how long, to which rank, how many tokens of prompt and answer, and whether to take back what came before."""

pushes = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 3_000), st.integers(0, 100_000)),
        st.integers(0, 2),
        st.integers(1, 90),
        st.integers(1, 60),
        st.booleans(),
    ),
    max_size=15,
)


class Group:
    """Engines behind one barrier. Whoever drives such a group lets no rank run ahead of another."""

    def __init__(self, *, is_stepped: bool) -> None:
        barrier = Barrier(3, base_ns=1_000, kv_token_ns=7)
        config = replace(CONFIG, stream_every_iteration=is_stepped)
        self.models = [EngineModel(replace(config, cost=rank)) for rank in barrier.ranks]
        self.outputs: list[EngineOutput] = []
        self.now_ns = 0

    def settle(self, until_ns: int | None) -> None:
        while True:
            changes_ns = [each for model in self.models if (each := model.next_change_ns()) is not None]
            next_ns = min(changes_ns, default=None)
            if next_ns is None or (until_ns is not None and next_ns > until_ns):
                return
            for model in self.models:
                self.outputs += model.advance(next_ns)

    def push(self, pushes: Pushes) -> None:
        for number, (after_ns, rank, prompt, output, takes_back) in enumerate(pushes):
            self.now_ns += after_ns
            self.settle(self.now_ns - 1)
            self.models[rank].submit(EngineRequest(f"{rank}/{number}", prompt, output), self.now_ns)
            if takes_back and number:
                self.models[pushes[number - 1][1]].abort(f"{pushes[number - 1][1]}/{number - 1}", self.now_ns)
        self.settle(None)

    def ends(self) -> list[tuple[str, int, bool]]:
        seen = [output for output in self.outputs if isinstance(output, FirstToken | Finished)]
        return sorted((output.request_id, output.at_ns, isinstance(output, Finished)) for output in seen)


@given(todo=pushes)
def test_ranks_that_wait_for_each_other_may_jump_as_well(todo: Pushes) -> None:
    step, jump = Group(is_stepped=True), Group(is_stepped=False)
    step.push(todo)
    jump.push(todo)

    assert jump.ends() == step.ends()
    assert [model.load() for model in jump.models] == [model.load() for model in step.models]


def test_the_short_answer_goes_at_the_pace_of_the_long_one() -> None:
    group = Group(is_stepped=True)
    group.push([(0, 0, 32, 3, False), (0, 1, 1, 3, False)])
    times = [
        [output.at_ns for output in group.outputs if output.request_id == name and isinstance(output, TokensGenerated)]
        for name in ("0/0", "1/1")
    ]

    first_ns = 1_000 + 32 * 7
    assert times[0] == times[1] == [first_ns + 1_000 + 33 * 7, first_ns + 2_000 + (33 + 34) * 7]


def test_who_has_nothing_to_run_holds_nobody_up() -> None:
    group = Group(is_stepped=False)
    group.push([(0, 0, 90, 1, False), (50_000, 1, 1, 2, False)])

    last = group.outputs[-1]
    assert (last.request_id, last.at_ns) == ("1/1", 50_000 + 1_000 + 7 + 1_000 + 2 * 7)
