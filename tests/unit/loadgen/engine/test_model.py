from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.blocks import packed
from loadgen.engine.iteration_cost import KvCost, LinearCost
from loadgen.engine.model import (
    Admitted,
    EngineConfig,
    EngineModel,
    EngineOutput,
    Finished,
    FirstTokenMade,
    NewTokenReservation,
    Preempted,
    TokensGenerated,
)
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.sglang_model import engine_model
from loadgen.engine.vocabulary import FinishReason, Rejection
from tests.support.iteration_costs import ExpertCost
from tests.support.names import names_in
from tests.support.nightly import examples

CONFIG = EngineConfig(
    cost=LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10),
    kv_blocks=24,
    context_tokens_max=160,
    sequences_max=4,
    batch_tokens_max=40,
    prefill_chunk_tokens=32,
    stream_every_iteration=True,
)


def chain(*labels: int) -> bytes:
    """Names of blocks with these contents: equal names mean equal contents of this block and all before it."""
    names: list[int] = []
    for label in labels:
        names.append(((names[-1] if names else 7) * 1_000_003 + label + 1) % 2**64)
    return packed(names)


def request(request_id: str, prompt: int, output: int, block_names: bytes = b"") -> EngineRequest:
    return EngineRequest(request_id, prompt, output, block_names)


def drain(model: EngineModel) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while (at_ns := model.next_change_ns()) is not None:
        outputs += model.advance(at_ns)
    return outputs


def finish_times(outputs: Iterable[EngineOutput]) -> dict[str, int]:
    return {output.request_id: output.at_ns for output in outputs if isinstance(output, Finished)}


def token_counts(outputs: Iterable[EngineOutput]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for output in outputs:
        if isinstance(output, FirstTokenMade):
            counts[output.request_id] = 1
        elif isinstance(output, TokensGenerated):
            counts[output.request_id] += output.count
    return counts


def test_one_request_takes_its_chunks_then_one_iteration_a_token() -> None:
    model = EngineModel(CONFIG)
    assert model.submit(request("a", prompt=40, output=3), 500) is None

    outputs = drain(model)

    first_chunk = 500 + 1_100 + 32 * 10
    prefilled = first_chunk + 1_100 + 8 * 10
    assert outputs == [
        Admitted("a", 500, 0),
        FirstTokenMade("a", prefilled),
        TokensGenerated("a", prefilled + 1_100, 1),
        TokensGenerated("a", prefilled + 2_200, 1),
        Finished("a", prefilled + 2_200, FinishReason.LENGTH),
    ]


def test_jumping_reports_the_same_tokens_in_one_piece() -> None:
    model = EngineModel(replace(CONFIG, stream_every_iteration=False))
    model.submit(request("a", prompt=8, output=100), 0)

    outputs = drain(model)

    prefilled = 1_100 + 80
    assert outputs == [
        Admitted("a", 0, 0),
        FirstTokenMade("a", prefilled),
        TokensGenerated("a", prefilled + 99 * 1_100, 99),
        Finished("a", prefilled + 99 * 1_100, FinishReason.LENGTH),
    ]


def test_prefill_of_one_rides_with_the_decoding_of_another() -> None:
    model = EngineModel(CONFIG)
    model.submit(request("a", prompt=8, output=10), 0)
    model.advance(0)
    model.submit(request("b", prompt=20, output=1), 1)

    outputs = drain(model)

    a_first = 1_100 + 80
    assert FirstTokenMade("b", a_first + 1_000 + 2 * 100 + 20 * 10) in outputs
    assert TokensGenerated("a", a_first + 1_000 + 2 * 100 + 20 * 10, 1) in outputs


def test_no_more_run_at_once_than_there_are_slots_and_the_rest_wait_in_order() -> None:
    model = EngineModel(CONFIG)
    for name in "abcdef":
        model.submit(request(name, prompt=4, output=5), 0)
    model.advance(0)

    assert (model.load().running, model.load().waiting) == (4, 2)
    admitted = [output.request_id for output in drain(model) if isinstance(output, Admitted)]
    assert admitted == ["e", "f"]


def test_a_newcomer_counts_as_waiting_only_once_the_scheduler_left_it_over() -> None:
    model = EngineModel(CONFIG)
    for name in "abcd":
        model.submit(request(name, prompt=4, output=50), 0)
    model.advance(0)
    model.submit(request("e", prompt=4, output=50), 10)
    assert (model.load().waiting, model.load().arriving) == (0, 1)

    at_ns = model.next_change_ns()
    assert at_ns is not None
    model.advance(at_ns)

    assert (model.load().waiting, model.load().arriving) == (1, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_who_comes_at_a_boundary_takes_part_in_it(stream: bool) -> None:
    model = EngineModel(replace(CONFIG, stream_every_iteration=stream))
    model.submit(request("a", prompt=8, output=50), 0)
    model.advance(0)
    model.submit(request("b", prompt=4, output=1), 1_180 + 2 * 1_100)

    assert Admitted("b", 1_180 + 2 * 1_100, 0) in drain(model)


def test_a_full_queue_rejects() -> None:
    model = EngineModel(replace(CONFIG, queued_requests_max=2, sequences_max=2))
    for name in "ab":
        model.submit(request(name, prompt=4, output=50), 0)
    model.advance(0)
    answers = [model.submit(request(name, prompt=4, output=50), 1) for name in "cde"]

    assert answers == [None, None, Rejection.QUEUE_FULL]
    assert model.load().rejections == 1


def test_what_can_never_fit_is_rejected() -> None:
    model = EngineModel(CONFIG)
    assert model.submit(request("a", prompt=100, output=61), 0) is Rejection.TOO_LONG
    assert model.submit(request("b", prompt=100, output=60), 0) is None


def test_a_finished_prompt_and_its_answer_are_a_prefix_for_the_next_turn() -> None:
    model = EngineModel(CONFIG)
    first_turn = chain(1, 2, 3, 4)
    model.submit(request("a", prompt=40, output=25, block_names=first_turn), 0)
    drain(model)
    model.submit(request("b", prompt=70, output=1, block_names=chain(1, 2, 3, 4, 99)), 1_000_000)
    outputs = model.advance(1_000_000)

    assert outputs == [Admitted("b", 1_000_000, cached_tokens=64)]
    assert (model.load().prefix_query_tokens, model.load().prefix_hit_tokens) == (110, 64)


@pytest.mark.parametrize(
    ("prompt", "output", "next_prompt"),
    [
        pytest.param(32, 1, 32, id="the last prompt token is always computed"),
        pytest.param(16, 16, 33, id="the last token of an answer is not in the cache"),
    ],
)
def test_of_two_full_blocks_only_the_first_is_reused(prompt: int, output: int, next_prompt: int) -> None:
    model = EngineModel(CONFIG)
    names = chain(1, 2)
    model.submit(request("a", prompt=prompt, output=output, block_names=names), 0)
    drain(model)
    model.submit(request("b", prompt=next_prompt, output=1, block_names=names), 1_000_000)

    assert model.advance(1_000_000) == [Admitted("b", 1_000_000, cached_tokens=16)]


def test_the_youngest_is_preempted_and_all_finish() -> None:
    model = EngineModel(replace(CONFIG, kv_blocks=10))
    for name in "ab":
        model.submit(request(name, prompt=32, output=100), 0)

    outputs = drain(model)

    preempted = [output.request_id for output in outputs if isinstance(output, Preempted)]
    assert preempted
    assert set(preempted) == {"b"}
    assert token_counts(outputs) == {"a": 100, "b": 100}
    assert model.load().preemptions == len(preempted)
    assert finish_times(outputs)["a"] < finish_times(outputs)["b"]


def test_a_preempted_sequence_goes_before_those_that_never_ran() -> None:
    model = EngineModel(replace(CONFIG, kv_blocks=10, sequences_max=2))
    for name in "abc":
        model.submit(request(name, prompt=32, output=100), 0)

    admitted = [output.request_id for output in drain(model) if isinstance(output, Admitted)]

    assert list(dict.fromkeys(admitted)) == ["a", "b", "c"]
    assert len(admitted) > 3
    assert "b" not in admitted[admitted.index("c") + 1 :]


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    model = EngineModel(replace(CONFIG, kv_blocks=10))
    for label, name in enumerate("ab"):
        model.submit(request(name, prompt=32, output=100, block_names=chain(*range(label * 50, label * 50 + 8))), 0)

    outputs = drain(model)

    second_entry = [output for output in outputs if isinstance(output, Admitted) and output.request_id == "b"][1]
    assert second_entry.cached_tokens > 0
    assert model.load().prefix_hit_tokens == 0, "hits after a preemption are not hits of a prompt"


def test_an_aborted_head_lets_the_next_one_in() -> None:
    model = EngineModel(replace(CONFIG, kv_blocks=10, stream_every_iteration=False))
    model.submit(request("a", prompt=30, output=90), 0)
    model.advance(0)
    model.submit(request("big", prompt=150, output=1), 1)
    model.submit(request("small", prompt=10, output=1), 1)
    model.advance(2_000)
    assert (model.load().running, model.load().waiting) == (1, 2)

    model.abort("big", 20_000)

    assert finish_times(drain(model))["small"] < 30_000


def test_abort_frees_everything_at_once() -> None:
    model = EngineModel(CONFIG)
    for name in "abcdef":
        model.submit(request(name, prompt=30, output=50, block_names=chain(1)), 0)
    model.advance(5_000)
    for name in "fedcba":
        model.abort(name, 5_001)

    load = model.load()
    assert (load.running, load.waiting, load.arriving, load.blocks_held) == (0, 0, 0, 0)
    drain(model)
    assert model.next_change_ns() is None


@pytest.mark.parametrize("stream", [True, False])
def test_abort_at_the_moment_of_the_last_token_comes_first(stream: bool) -> None:
    model = EngineModel(replace(CONFIG, stream_every_iteration=stream))
    model.submit(request("a", prompt=8, output=3), 0)
    model.advance(0)
    model.abort("a", 1_180 + 2_200)

    outputs = drain(model)

    assert token_counts(outputs) == {"a": 2}
    assert finish_times(outputs) == {}


@pytest.mark.parametrize("stream", [True, False])
def test_abort_leaves_the_others_the_block_of_their_iteration_in_flight(stream: bool) -> None:
    model = EngineModel(replace(CONFIG, stream_every_iteration=stream))
    for name in "ab":
        model.submit(request(name, prompt=15, output=50), 0)
    model.advance(0)
    both_have_16_tokens_computed = 1_200 + 300 + 1_200
    model.abort("b", both_have_16_tokens_computed + 1)

    assert model.load().blocks_held == 2


def test_what_happened_before_a_call_is_due_at_once() -> None:
    model = EngineModel(CONFIG)
    model.submit(request("a", prompt=8, output=1), 0)
    model.abort("a", 5_000)

    assert model.next_change_ns() == 5_000
    assert finish_times(model.advance(5_000)) == {"a": 1_180}
    assert model.next_change_ns() is None


def test_time_does_not_go_back() -> None:
    model = EngineModel(CONFIG)
    model.advance(1_000)
    with pytest.raises(AssertionError, match="backwards"):
        model.advance(998)


@dataclass(frozen=True)
class Submit:
    after_ns: int
    prompt: int
    output: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Abort:
    after_ns: int
    index: int


@dataclass(frozen=True)
class Look:
    after_ns: int


Action = Submit | Abort | Look

pauses = st.one_of(st.just(0), st.integers(0, 5_000), st.integers(0, 200_000))
submits = st.builds(
    Submit, pauses, st.integers(1, 100), st.integers(1, 60), st.lists(st.integers(0, 1), max_size=8).map(tuple)
)
actions = st.lists(
    st.one_of(submits, submits, submits, st.builds(Abort, pauses, st.integers(0, 30)), st.builds(Look, pauses)),
    max_size=30,
)
costs = st.sampled_from([CONFIG.cost, KvCost(LinearCost(1_000, 100, 10), kv_token_ns=3), ExpertCost(1_000, 70)])
configs = st.builds(
    replace,
    st.just(CONFIG),
    cost=costs,
    kv_blocks=st.integers(10, 40),
    sequences_max=st.integers(1, 6),
    prefill_chunk_tokens=st.integers(1, 40),
    queued_requests_max=st.one_of(st.none(), st.integers(1, 5)),
    reservation=st.sampled_from(
        [None, NewTokenReservation(0.7, 0.1, decay_iterations=20, tokens_max=30, retract_iterations=3)]
    ),
)
jumping_or_not = st.builds(replace, configs, stream_every_iteration=st.booleans())


@dataclass
class Story:
    """Requests to one engine, and its outputs."""

    model: EngineModel
    outputs: list[EngineOutput] = field(default_factory=list)
    output_tokens: dict[str, int] = field(default_factory=dict)
    """Output tokens of each accepted request."""
    aborted_ns: dict[str, int] = field(default_factory=dict)
    now_ns: int = 0

    def act(self, action: Action) -> None:
        self.now_ns += action.after_ns
        match action:
            case Submit():
                self.submit(action)
            case Abort(index=index) if index < len(self.output_tokens):
                name = list(self.output_tokens)[index]
                self.aborted_ns.setdefault(name, self.now_ns)
                self.model.abort(name, self.now_ns)
            case Abort() | Look():
                self.outputs += self.model.advance(self.now_ns)

    def finish(self, todo: list[Action]) -> list[EngineOutput]:
        """All outputs until no work is left."""
        for action in todo:
            self.act(action)
        return self.outputs + drain(self.model)

    def submit(self, action: Submit) -> None:
        name = f"r{len(self.output_tokens)}"
        labels = action.labels[: (action.prompt + action.output) // CONFIG.block_tokens]
        wanted = request(name, action.prompt, action.output, chain(*labels))
        if self.model.submit(wanted, self.now_ns) is None:
            self.output_tokens[name] = action.output


def assert_holds_what_it_should(model: EngineModel) -> None:
    held = [sequence.held for sequence in model._sequences.values()]
    assert all(0 <= each.named <= each.filled <= each.blocks for each in held)
    assert max((each.blocks for each in held), default=0) <= model._pool.held <= sum(each.blocks for each in held)


@settings(max_examples=examples(few=50, night=300))
@given(config=jumping_or_not, todo=actions)
def test_blocks_are_conserved_and_the_batch_keeps_its_bounds(config: EngineConfig, todo: list[Action]) -> None:
    story = Story(engine_model(config))
    for action in todo:
        story.act(action)
        load = story.model.load()
        assert_holds_what_it_should(story.model)
        assert load.running <= config.sequences_max
        assert 0 <= load.blocks_held <= config.kv_blocks
        if config.queued_requests_max is not None:
            assert load.arriving <= config.queued_requests_max
    drain(story.model)
    assert_holds_what_it_should(story.model)
    assert story.model.load().blocks_held == 0


@settings(max_examples=examples(few=50, night=300))
@given(config=jumping_or_not, todo=actions)
def test_every_request_ends_once_with_all_its_tokens_or_was_aborted(config: EngineConfig, todo: list[Action]) -> None:
    story = Story(engine_model(config))
    outputs = story.finish(todo)

    assert [output.at_ns for output in outputs] == sorted(output.at_ns for output in outputs)
    ended = [output.request_id for output in outputs if isinstance(output, Finished)]
    assert len(ended) == len(set(ended))
    counts = token_counts(outputs)
    for name, output_tokens in story.output_tokens.items():
        assert name in ended or name in story.aborted_ns
        assert counts.get(name, 0) == output_tokens if name in ended else counts.get(name, 0) < output_tokens
    for output in outputs:
        assert output.at_ns <= story.aborted_ns.get(output.request_id, output.at_ns)
    assert story.model.load().running == story.model.load().waiting == story.model.load().arriving == 0


@settings(max_examples=examples(few=50, night=500))
@given(config=configs, todo=actions)
def test_jumping_over_iterations_changes_nothing_but_the_number_of_reports(
    config: EngineConfig, todo: list[Action]
) -> None:
    step = Story(engine_model(config))
    jump = Story(engine_model(replace(config, stream_every_iteration=False)))
    for action in todo:
        step.act(action)
        jump.act(action)
        assert jump.model.load() == step.model.load()
    step.outputs += drain(step.model)
    jump.outputs += drain(jump.model)

    assert jump.output_tokens == step.output_tokens
    assert whole_story(jump.outputs) == whole_story(step.outputs)
    assert jump.model.load() == step.model.load()


def whole_story(outputs: list[EngineOutput]) -> tuple[list[EngineOutput], dict[str, int]]:
    """Outputs without the times and sizes of further tokens, and the total of tokens of each request."""
    return [output for output in outputs if not isinstance(output, TokensGenerated)], token_counts(outputs)


@dataclass
class NaiveCache:
    """Prefix cache for one request at a time: a list of block names, least recently used first, and no counters."""

    blocks: int
    names: list[bytes] = field(default_factory=list)

    def run(self, chain: bytes, prompt: int, output: int) -> int:
        """Cached tokens of this request's prompt; updates the cache as the request leaves it."""
        size, names = CONFIG.block_tokens, names_in(chain)
        hits = 0
        while hits < min(len(names), (prompt - 1) // size) and names[hits] in self.names:
            hits += 1
        idle = [name for name in self.names if name not in names[:hits]]
        mine = names[:hits]
        for tokens in computed_after_each_iteration(hits * size, prompt, output):
            blocks = -(-tokens // size)
            idle = idle[max(0, len(idle) + blocks - self.blocks) :]
            mine = names[: tokens // size]
            idle = [name for name in idle if name not in mine]
        self.names = idle + mine[::-1]
        return hits * size


def computed_after_each_iteration(cached: int, prompt: int, output: int) -> list[int]:
    chunks = [*range(cached + CONFIG.prefill_chunk_tokens, prompt, CONFIG.prefill_chunk_tokens), prompt]
    return chunks + [prompt + token for token in range(1, output)]


turns = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 40), st.lists(st.integers(0, 1), max_size=8)), max_size=20
)


@settings(max_examples=examples(few=50, night=300))
@given(kv_blocks=st.integers(10, 30), stream=st.booleans(), requests=turns)
def test_prefix_hits_equal_those_of_a_naive_cache(
    kv_blocks: int, stream: bool, requests: list[tuple[int, int, list[int]]]
) -> None:
    model = EngineModel(replace(CONFIG, kv_blocks=kv_blocks, stream_every_iteration=stream))
    naive = NaiveCache(kv_blocks)
    queries = hits = 0
    for index, (prompt, output, labels) in enumerate(requests):
        names = chain(*labels[: (prompt + output) // CONFIG.block_tokens])
        model.submit(request(f"r{index}", prompt, output, names), index * 10_000_000)
        admitted = [out.cached_tokens for out in drain(model) if isinstance(out, Admitted)]
        expected = naive.run(names, prompt, output)
        assert admitted == [expected]
        queries += prompt
        hits += expected
    assert (model.load().prefix_query_tokens, model.load().prefix_hit_tokens) == (queries, hits)
