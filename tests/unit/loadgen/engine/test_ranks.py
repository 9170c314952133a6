from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, Steps
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import (
    Admitted,
    EngineConfig,
    EngineModel,
    EngineOutput,
    Expired,
    Fetching,
    Finished,
    FirstTokenMade,
)
from loadgen.engine.ranks import Ranks
from loadgen.engine.sequences import EngineRequest

CONFIG = EngineConfig(
    cost=LinearCost(base_ns=1_000, sequence_ns=0, prefill_token_ns=0),
    kv_blocks=1_000,
    context_tokens_max=16_000,
    sequences_max=2,
    batch_tokens_max=16_000,
    prefill_chunk_tokens=16_000,
)

works = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 3_000), st.integers(0, 90_000)),
        st.integers(0, 2),
        st.integers(1, 900),
        st.integers(1, 60),
        st.booleans(),
    ),
    max_size=15,
)


def drain(ranks: Ranks) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while (at_ns := ranks.next_change_ns()) is not None:
        outputs += ranks.advance(at_ns)
    return outputs


@given(works=works, is_stepped=st.booleans())
def test_engines_behind_a_barrier_tell_the_story_of_the_decode_group(
    works: list[tuple[int, int, int, int, bool]], is_stepped: bool
) -> None:
    engine_steps, group_steps = list[Steps](), list[Steps]()
    ranks = Ranks(replace(CONFIG, stream_every_iteration=is_stepped), 3, 7, engine_steps.append)
    group = DecodeGroup(DecodeGroupConfig(3, 2, 1_000, 7), group_steps.append)
    now_ns = 0
    for number, (after_ns, rank, prompt, output, takes_back) in enumerate(works):
        now_ns += after_ns
        ranks.submit(rank, EngineRequest(str(number), prompt, output), now_ns)
        group.admit(str(number), rank, prompt, output, now_ns)
        if takes_back and number and after_ns:
            ranks.abort(str(number - 1), now_ns)
            group.abort(str(number - 1), now_ns)

    ends = [(each.request_id, each.at_ns) for each in drain(ranks) if isinstance(each, FirstTokenMade | Finished)]
    told = list[tuple[str, int]]()
    while (at_ns := group.next_change_ns()) is not None:
        told += [(each.request_id, each.at_ns) for each in group.advance(at_ns)]
    assert sorted(ends) == sorted(told)
    assert [each.end_ns for each in engine_steps] == [
        each.begin_ns + each.envelope.duration_ns(step + 1) for each in group_steps for step in range(each.steps)
    ]


def test_one_rank_without_a_barrier_is_a_plain_engine() -> None:
    ranks, model = Ranks(CONFIG), EngineModel(CONFIG)
    ranks.submit(0, EngineRequest("a", 100, 5), 10)
    model.submit(EngineRequest("a", 100, 5), 10)

    assert ranks.advance(1_000_000) == model.advance(1_000_000)


def test_who_names_no_rank_goes_to_the_emptiest() -> None:
    ranks = Ranks(CONFIG, 3)
    ranks.submit(0, EngineRequest("a", 10, 5), 0)
    ranks.submit(1, EngineRequest("b", 10, 5), 0)

    assert ranks.emptiest() == 2


def test_what_a_rank_keeps_and_fetches_is_found_by_its_request() -> None:
    ranks = Ranks(CONFIG, 2)
    ranks.submit(1, EngineRequest("a", 10, 1, lease_ns=40_000), 0)
    ranks.submit(0, EngineRequest("b", 10, 1, is_remote=True), 0)
    outputs = ranks.advance(5_000)
    assert {type(each) for each in outputs} == {Fetching, Admitted, FirstTokenMade, Finished}
    assert ranks.keeps("a")
    ranks.deliver("b", 6_000, has_come=True)
    assert ranks.renew("a", 90_000, 6_000)
    outputs = drain(ranks)

    assert outputs[-1] == Expired("a", 90_000)
    assert not ranks.keeps("a")
    assert not ranks.let_go("a", 100_000)
    assert [load.blocks_held for load in ranks.loads()] == [0, 0]
    assert not ranks._ranks
