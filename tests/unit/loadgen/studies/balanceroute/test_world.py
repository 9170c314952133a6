"""The world without a gateway: it is the same twice, loses no request, and tells policies apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.features.disaggregated.config import DecodePolicyName
from loadgen.figures import Figures
from loadgen.studies.balanceroute.world import BACKLOG, BalanceCell, play

JSQ = BalanceCell("prompts", DecodePolicyName.JOIN_SHORTEST_QUEUE, workers=4, batch=8, requests=250)
BR_0 = replace(JSQ, policy=DecodePolicyName.BR_0)
ORACLE = replace(JSQ, policy=DecodePolicyName.BR_H, predictor="oracle")


def played(setting: BalanceCell) -> Figures:
    return play(setting, None)


def test_equal_settings_give_equal_figures_and_others_do_not() -> None:
    assert played(ORACLE) == played(ORACLE)
    assert played(ORACLE) != played(replace(ORACLE, seed=2))


def test_balance_is_ordered_by_what_is_known() -> None:
    gaps = [played(setting)["gap"] for setting in (JSQ, BR_0, ORACLE)]
    assert gaps[0] > 1.5 * gaps[1]
    assert gaps[0] > 2 * gaps[2]


def test_a_backlog_keeps_all_slots_busy() -> None:
    figures = played(JSQ)
    assert 0.97 * 32 < figures["running"] <= 32
    assert figures["expired"] == 0


def test_less_than_what_fits_leaves_slots_free() -> None:
    assert JSQ.offered == BACKLOG
    assert played(replace(JSQ, offered=0.5))["running"] < 0.8 * 32


@pytest.mark.parametrize("predictor", ["survival", "exact_match", "oracle"])
def test_a_predictor_is_asked_and_never_fails(predictor: str) -> None:
    figures = played(replace(ORACLE, predictor=predictor))
    assert figures["degraded"] == 0
    assert figures["gap"] != played(BR_0)["gap"]


def test_without_its_predictor_br_h_is_br_0() -> None:
    without = played(replace(ORACLE, predictor=""))
    assert without["degraded"] > 0
    assert without["gap"] == played(BR_0)["gap"]


def test_a_short_lease_lets_the_old_go_first() -> None:
    assert played(replace(BR_0, lease_s=2))["aged"] > played(BR_0)["aged"]


def test_the_bound_is_below_what_ran_and_above_nothing() -> None:
    figures = played(replace(ORACLE, is_bounded=True))
    assert 0 < figures["bound"] < figures["gap"]


def test_early_ones_and_those_past_the_pool_hide_the_transfer() -> None:
    slow = replace(BR_0, transfer_token_ns=400_000)
    for hidden in (replace(slow, early=2), replace(slow, bypass=True)):
        assert played(hidden)["running"] > played(slow)["running"]


def test_the_loads_of_each_worker_are_kept_where_asked_for() -> None:
    loads = played(replace(BR_0, keep_steps=50))["loads"]
    assert [len(worker) for worker in loads] == [50] * 4
    assert "loads" not in played(BR_0)
