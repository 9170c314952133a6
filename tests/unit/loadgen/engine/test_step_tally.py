from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, Steps
from loadgen.engine.step_tally import StepTally

CONFIG = DecodeGroupConfig(ranks=3, batch_max=4, base_ns=1_000, kv_token_ns=7)

works = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 900), st.integers(1, 60)), min_size=1, max_size=12)


@given(works=works)
def test_it_sums_up_what_each_step_would_add(works: list[tuple[int, int, int]]) -> None:
    tally, stretches = StepTally(), list[Steps]()

    def seen(steps: Steps) -> None:
        stretches.append(steps)
        tally.add(steps)

    group = DecodeGroup(CONFIG, seen)
    for number, (rank, prompt, output) in enumerate(works):
        group.admit(str(number), rank, prompt, output, 0)
    while (at_ns := group.next_change_ns()) is not None:
        group.advance(at_ns)

    loads = [
        [tokens + step * more for tokens, more in zip(each.kv_tokens, each.running, strict=True)]
        for each in stretches
        for step in range(each.steps)
    ]
    assert tally.steps == len(loads) == group.steps
    assert tally.spread_tokens == sum(max(each) - min(each) for each in loads)
    assert tally.idle_tokens == sum(max(each) - tokens for each in loads for tokens in each)
    assert tally.read_tokens == sum(map(sum, loads))
    assert tally.output_tokens == sum(output for _, _, output in works)
    assert tally.lasted_ns == sum(1_000 + 7 * max(each) for each in loads)
