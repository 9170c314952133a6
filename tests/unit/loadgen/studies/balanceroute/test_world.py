"""The world without a gateway: it is the same twice, loses no request, and tells policies apart."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from gateway.core.features.disaggregated.config import DecodePolicyName
from loadgen.figures import Figures
from loadgen.studies.balanceroute.capacity import kv_tokens_of
from loadgen.studies.balanceroute.loads import LOADS, PrefilledRequest, asked
from loadgen.studies.balanceroute.world import BACKLOG, BalanceCell, PlayProtocol, play

JSQ = BalanceCell("prompts", DecodePolicyName.JOIN_SHORTEST_QUEUE, workers=4, batch=8, requests=250)
BR_0 = replace(JSQ, policy=DecodePolicyName.BR_0)
ORACLE = replace(JSQ, policy=DecodePolicyName.BR_H, predictor="oracle")


@cache
def played(setting: BalanceCell) -> Figures:
    return play(setting, None)


def _asked(setting: BalanceCell) -> list[PrefilledRequest]:
    """Requests of a replay, which its seed draws first."""
    later = asked(LOADS[setting.load], None).later
    start = random.Random(f"{setting.load}/{setting.seed}").randrange(len(later))
    return [later[(start + number) % len(later)] for number in range(setting.requests)]


def test_equal_settings_give_equal_figures_and_others_do_not() -> None:
    assert played(ORACLE) == play(ORACLE, None)
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


REPLAY = PlayProtocol(is_replay=True)


def test_a_replay_counts_every_token_until_the_last_end() -> None:
    setting = replace(JSQ, requests=60, offered=1.5)
    figures = play(setting, None, REPLAY)
    asked_tokens = sum(each.output_tokens for each in _asked(setting))
    assert round(figures["running"] * figures["steps"]) == asked_tokens
    # Fewer run in the mean than in a steady state, since begin and end count.
    assert figures["running"] < played(setting)["running"]


def test_at_once_nothing_waits_in_the_pool() -> None:
    setting = replace(JSQ, requests=120, offered=1.5)
    at_once, pooled = (play(setting, None, replace(REPLAY, sends_at_once=each)) for each in (True, False))
    assert at_once["wait_mean_ms"] == 0.0 < pooled["wait_mean_ms"]
    assert at_once["running"] * at_once["steps"] == pytest.approx(pooled["running"] * pooled["steps"])


@pytest.mark.parametrize("protocol", [PlayProtocol(), REPLAY, PlayProtocol(is_replay=True, sends_at_once=True)])
def test_a_limited_cache_is_never_overfilled(protocol: PlayProtocol) -> None:
    setting = replace(JSQ, requests=100, offered=1.5)
    kv_tokens = kv_tokens_of(asked(LOADS[setting.load], None).later, setting.batch, 0.01)
    limited = play(replace(setting, keep_steps=100_000), None, replace(protocol, room_share=0.01))
    assert max(max(worker) for worker in limited["loads"]) <= kv_tokens
    assert max(max(worker) for worker in limited["loads"]) > 0.7 * kv_tokens


def test_a_run_tells_what_its_predictor_foresaw() -> None:
    assert played(ORACLE)["foreseen_share"] > 0.8
    assert played(ORACLE)["right_share"] == 1.0
    assert "foreseen_share" not in played(BR_0)
