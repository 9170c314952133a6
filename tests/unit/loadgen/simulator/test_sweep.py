"""Grids, and that the number of processes changes nothing."""

from __future__ import annotations

from loadgen.simulator.sweep import all_done, grid


def double(number: int) -> int:
    return 2 * number


def test_a_grid_is_every_combination() -> None:
    assert grid({"a": (1, 2), "b": ("x", "y")}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid({}) == [{}]


def test_processes_change_nothing_but_the_order() -> None:
    alone = dict(all_done(double, range(20), processes=1))
    together = dict(all_done(double, range(20), processes=2))
    assert alone == together == {number: 2 * number for number in range(20)}


def test_whoever_has_seen_enough_may_leave() -> None:
    for job, done in all_done(double, range(1000), processes=2):
        assert done == 2 * job
        break
