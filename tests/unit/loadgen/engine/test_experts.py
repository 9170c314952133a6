from __future__ import annotations

import numpy as np
import pytest

from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, Steps
from loadgen.engine.experts import ExpertCosts, ExpertLoad, log_absence
from loadgen.engine.model import Finished

COSTS = ExpertCosts(layers=2, experts=4, layer_ns=100.0, expert_ns=1000.0)
RNG = np.random.default_rng(1)


def picks(*experts: int) -> np.ndarray:
    """Probabilities of 1 for these experts, in both layers."""
    chances = np.zeros((2, 4))
    chances[:, list(experts)] = 1.0
    return chances


def test_the_mean_number_of_distinct_ones_is_that_of_drawn_batches() -> None:
    chances = RNG.uniform(0, 0.7, (5, 2, 4))
    load = ExpertLoad(COSTS)
    for number, each in enumerate(chances):
        load.enter(str(number), log_absence(each))
    drawn = (RNG.uniform(size=(20_000, 5, 2, 4)) < chances).any(axis=1).sum(axis=(1, 2)) / 2
    assert load.active_mean() == pytest.approx(drawn.mean(), abs=0.02)


def test_a_step_reads_each_expert_once_however_many_pick_it() -> None:
    load = ExpertLoad(COSTS)
    assert load.step_ns() == 0
    for number in range(3):
        load.enter(f"a{number}", log_absence(picks(0, 1)))
    assert load.active_mean() == pytest.approx(2.0, abs=1e-4)
    assert load.step_ns() == pytest.approx(2 * 100 + 4 * 1000, abs=1)
    load.enter("b", log_absence(picks(1, 2)))
    assert load.active_mean() == pytest.approx(3.0, abs=1e-4)
    load.leave("b")
    assert load.active_mean() == pytest.approx(2.0, abs=1e-4)


def test_many_who_come_and_go_leave_nothing_behind() -> None:
    load = ExpertLoad(COSTS)
    load.enter("stays", log_absence(picks(3)))
    for number in range(2_000):
        load.enter(str(number), log_absence(RNG.uniform(0, 1, (2, 4))))
        load.leave(str(number))
    assert load.active().ravel().tolist() == pytest.approx(picks(3).ravel().tolist(), abs=1e-5)
    load.leave("stays")
    assert not load.active().any()


def test_among_ranks_that_share_experts_out_the_one_that_reads_most_counts() -> None:
    shared = ExpertCosts(2, 4, 0.0, 1000.0, ranks=2)
    in_a_row, placed = ExpertLoad(shared), ExpertLoad(shared, np.array([[0, 1, 0, 1]] * 2))
    for load in (in_a_row, placed):
        load.enter("a", log_absence(picks(0, 1)))
    assert in_a_row.step_ns() == pytest.approx(4_000, abs=1)
    assert placed.step_ns() == pytest.approx(2_000, abs=1)


def test_a_groups_steps_take_what_their_batches_read() -> None:
    told: list[Steps] = []
    load = ExpertLoad(COSTS)
    group = DecodeGroup(DecodeGroupConfig(1, 4, base_ns=10_000, kv_token_ns=1), told.append, [load])
    group.admit("a", 0, 10, 4, 0, absence=log_absence(picks(0, 1)))
    first_ns = 10_000 + 200 + 4_000
    assert group.next_change_ns() == pytest.approx(first_ns + 10, abs=1), "what it reads of the prompt besides"
    group.advance(first_ns + 10)
    group.admit("b", 0, 10, 2, first_ns + 10, absence=log_absence(picks(2, 3)))
    ended = [each for each in group.advance(10**9) if isinstance(each, Finished)]
    assert [each.request_id for each in ended] == ["b", "a"]
    assert [round(each.experts[0], 3) for each in told] == [2.0, 4.0, 4.0, 2.0]
    lasted = [each.end_ns - each.begin_ns for each in told]
    assert lasted[1] - lasted[0] == pytest.approx(4_000 + 11, abs=2)
    assert not load
