from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.barrier import Barrier
from loadgen.engine.decode_group import Steps
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import EngineConfig, EngineModel, EngineOutput, Finished, FirstTokenMade, TokensGenerated
from loadgen.engine.sequences import EngineRequest

CONFIG = EngineConfig(
    cost=LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10),
    kv_blocks=24,
    context_tokens_max=160,
    sequences_max=4,
    batch_tokens_max=40,
    prefill_chunk_tokens=32,
)


Pushes = list[tuple[int, int, int, int, bool]]
"""Delay, rank, tokens of prompt and answer, and True to remove the last request."""

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
    """Engines behind one barrier, driven so that no rank runs ahead of another."""

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
        seen = [output for output in self.outputs if isinstance(output, FirstTokenMade | Finished)]
        return sorted((output.request_id, output.at_ns, isinstance(output, Finished)) for output in seen)


@given(todo=pushes)
def test_ranks_that_wait_for_each_other_may_jump_as_well(todo: Pushes) -> None:
    step, jump = Group(is_stepped=True), Group(is_stepped=False)
    step.push(todo)
    jump.push(todo)

    assert jump.ends() == step.ends()
    assert [model.load() for model in jump.models] == [model.load() for model in step.models]


def test_what_is_behind_everybody_is_forgotten() -> None:
    barrier = Barrier(2, base_ns=1_000, kv_token_ns=7)
    models = [EngineModel(replace(CONFIG, cost=rank, stream_every_iteration=True)) for rank in barrier.ranks]
    models[0].submit(EngineRequest("a", 10, 140), 0)
    while (at_ns := models[0].next_change_ns()) is not None:
        for model in models:
            model.advance(at_ns)

    assert barrier.current >= 140
    assert barrier.begins_ns(barrier.current) > 140_000
    assert len(barrier._begins_ns) <= 2


def test_each_iteration_is_told_with_what_each_rank_read() -> None:
    told: list[Steps] = []
    barrier = Barrier(2, base_ns=1_000, kv_token_ns=7, on_steps=told.append)
    models = [EngineModel(replace(CONFIG, cost=rank, stream_every_iteration=True)) for rank in barrier.ranks]
    models[0].submit(EngineRequest("a", 10, 3), 0)
    models[1].submit(EngineRequest("b", 20, 1), 0)
    while changes := [at_ns for model in models if (at_ns := model.next_change_ns()) is not None]:
        for model in models:
            model.advance(min(changes))

    assert [(each.number, each.begin_ns, each.end_ns, each.running, each.kv_tokens) for each in told] == [
        (0, 0, 1_140, [1, 1], [10, 20]),
        (1, 1_140, 1_140 + 1_077, [1, 0], [11, 0]),
        (2, 1_140 + 1_077, 1_140 + 1_077 + 1_084, [1, 0], [12, 0]),
    ]


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
