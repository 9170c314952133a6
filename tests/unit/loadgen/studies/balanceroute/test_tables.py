"""Tables show ratios to JSQ of the same seed, with the paper's beside them."""

from __future__ import annotations

import pytest

from loadgen.figures import Figures
from loadgen.studies.balanceroute import plan, tables
from loadgen.studies.balanceroute.plan import BR_0, JSQ, Comparison
from loadgen.studies.balanceroute.tables import ResultReader

COMPARISON = Comparison("prompts", plan.STANDING, 8, (JSQ, BR_0))
BASE: Figures = {"gap": 100.0, "deficit": 500.0, "tpot_p95_ms": 30.0, "tokens_per_s": 1000.0, "kv_share": 0.5,
                 "largest": 200.0, "mean": 150.0, "wait_mean_ms": 3.0}  # fmt: skip


def reader() -> ResultReader:
    """Results in which BR-0 divides JSQ's gap by 2, 4 and 8, seed by seed, for any gap of JSQ."""
    results = {}
    for number, (base, ours) in enumerate(zip(COMPARISON.of(JSQ), COMPARISON.of(BR_0), strict=True), 1):
        results[base] = BASE | {"gap": 100.0 * number}
        results[ours] = BASE | {"gap": 100.0 * number / 2**number, "tokens_per_s": 1100.0}
    return ResultReader(results)


def test_ratios_are_paired_by_seed() -> None:
    divided = reader().divided(COMPARISON, BR_0)
    assert divided is not None
    assert (divided.median, divided.low, divided.high) == (4.0, 2.0, 8.0)
    assert tables.theirs(COMPARISON, BR_0, "gap") == pytest.approx(4.1, abs=0.06)
    assert tables.theirs(COMPARISON, BR_0, "tokens_per_s") == pytest.approx(1.118, abs=0.001)


def test_the_strongest_baseline_is_the_one_that_generates_most() -> None:
    assert reader().strongest(COMPARISON) is JSQ


def test_perfect_balance_wins_what_waits_for_the_fullest() -> None:
    run: Figures = {"kv_share": 0.5, "mean": 100.0, "largest": 200.0}
    # Half a step is spent reading the KV cache; half of that is waiting.
    assert tables.perfect(run) == pytest.approx(1 / 0.75)


def test_a_load_is_called_by_the_first_of_its_words() -> None:
    assert [each.brief for each in plan.REGIMES] == [
        "near saturation",
        "standing backlog",
        "batches of 64",
        "three times what fits",
    ]
