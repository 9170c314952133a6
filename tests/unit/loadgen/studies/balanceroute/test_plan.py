"""The plan: each axis includes the default, seeds are paired, and only loads whose files exist are played."""

from __future__ import annotations

from loadgen.studies.balanceroute import plan
from loadgen.studies.balanceroute.loads import CHOOSING, LOADS


def test_every_axis_holds_the_default_and_changes_one_thing() -> None:
    for axis in plan.axes():
        assert axis.balances.count(plan.DEFAULT) == 1, axis.name
        assert all(each.refresh_tokens < each.horizon_steps for each in axis.balances)


def test_everybody_in_a_table_is_asked_the_same() -> None:
    for comparison in plan.comparisons():
        asked = {
            tuple((each.load, each.seed, each.requests, each.offered, each.workers) for each in comparison.of(run))
            for run in comparison.runs
        }
        assert len(asked) == 1
        assert plan.JSQ in comparison.runs


def test_the_sweep_is_on_loads_that_no_table_has() -> None:
    assert {each.load for each in plan.sweep()} == set(CHOOSING)
    assert not {each.load for each in plan.comparisons()} & set(CHOOSING)


def test_what_is_kept_aside_is_played_only_where_it_is_asked_for() -> None:
    aside = {each.load for each in plan.aside()}
    assert not aside & {each.load for each in plan.settings(list(LOADS))}
    assert aside <= {each.load for each in plan.settings(list(LOADS), look=True)}
    assert {each.load for each in plan.settings(["prompts"])} == {"prompts"}
