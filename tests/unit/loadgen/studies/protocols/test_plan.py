"""The plan: fresh seeds, equal requests for all contenders of a case, and each cell once."""

from __future__ import annotations

from dataclasses import replace

from loadgen.studies.balanceroute import plan as balanceroute
from loadgen.studies.balanceroute.world import BACKLOG
from loadgen.studies.protocols import plan


def test_seeds_are_fresh_and_ten() -> None:
    assert len(set(plan.SEEDS)) == len(plan.SEEDS) >= 10
    assert len(set(plan.LONG_SEEDS)) == len(plan.LONG_SEEDS) >= 10
    assert not {*plan.SEEDS, *plan.LONG_SEEDS} & {plan.THROW_AWAY, *balanceroute.SEEDS}
    assert not {*plan.SEEDS} & {*plan.LONG_SEEDS}
    assert not {*plan.FULL_SEEDS} & {*plan.SEEDS, *plan.LONG_SEEDS, plan.THROW_AWAY, *balanceroute.SEEDS}


def test_all_contenders_of_a_case_are_asked_the_same() -> None:
    for case in plan.cases():
        asked = {
            (cell.setting.load, cell.setting.requests, cell.setting.offered, cell.protocol.room_share,
             cell.protocol.is_replay, cell.setting.base_ns, cell.setting.kv_token_ns)
            for cell in (case.cell(each, 1) for each in case.contenders)
        }  # fmt: skip
        assert len(asked) == 1


def test_only_requests_that_arrive_can_be_sent_at_once() -> None:
    for case in plan.cases():
        is_backlog = case.procedure.offered == BACKLOG
        assert any(each.at_once for each in case.contenders) is not is_backlog
        assert plan.JSQ_POOLED in case.contenders


def test_the_plan_crosses_loads_procedures_batches_and_caches() -> None:
    rooms = sum(len(each.rooms) for each in plan.PROCEDURES)
    assert len(plan.cases()) == len(set(plan.cases())) == len(plan.SCALED) * len(plan.BATCHES) * rooms
    assert {each.room_share for each in plan.cases()} == set(plan.ROOMS)
    assert len({each.is_replay for each in plan.PROCEDURES}) == 2
    cells = plan.all_cells((1, 2))
    assert len(set(cells)) == len(cells)
    assert [each.setting.seed for each in cells] == sorted(each.setting.seed for each in cells)


def test_the_cross_has_the_papers_place_among_the_cells_of_the_comparison() -> None:
    assert (48, 0.9) in plan.CROSS
    case, contender = plan.CROSS_CASES[0], plan.ORACLE
    assert case.cell(contender, 1, plan.balance_at(48, 0.9)) == case.cell(contender, 1)
    assert all(
        plan.balance_at(*at).refresh_tokens < at[0] and plan.balance_at(*at).discount == at[1] for at in plan.CROSS
    )


def test_a_quick_run_has_every_cell_with_few_requests() -> None:
    quick = plan.all_cells((1,), quick=True)
    assert len(quick) == len(plan.all_cells((1,)))
    assert max(each.setting.requests for each in quick) < 100


def test_longer_runs_are_five_times_as_long_and_the_same_otherwise() -> None:
    for case in plan.LONG_CASES:
        usual = replace(case, times=1)
        assert usual in plan.cases()
        for contender in case.contenders:
            long, short = case.cell(contender, 1), usual.cell(contender, 1)
            assert long.setting.requests == 5 * short.setting.requests
            assert replace(long.setting, requests=short.setting.requests) == short.setting
    assert len(set(plan.long_cells((1, 2)))) == 2 * sum(len(case.contenders) for case in plan.LONG_CASES)


def test_runs_with_full_caches_are_longer_cases_of_the_comparison() -> None:
    for case in plan.FULL_CASES:
        assert case.room_share == plan.LIMITED
        assert case.times > plan.LONG_CASES[0].times
        assert replace(case, times=1) in plan.cases()
