"""Grids, and that the number of processes changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from loadgen.simulator.ray_cluster import connected
from loadgen.simulator.sweep import all_done, all_done_on, grid
from mesh.faults import ConfigError


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


class FakeCluster:
    """Cluster that finishes the latest job first, and remembers its jobs."""

    def __init__(self) -> None:
        self.at_once_max = 0
        self.cancelled: list[int] = []
        self._jobs: dict[int, tuple[Callable[[Any], Any], object]] = {}

    def submit(self, work: Callable[[Any], Any], job: object) -> object:
        ticket = len(self._jobs)
        self._jobs[ticket] = work, job
        return ticket

    def first_done(self, tickets: Sequence[object]) -> object:
        self.at_once_max = max(self.at_once_max, len(tickets))
        return tickets[-1]

    def result(self, ticket: object) -> Any:
        assert isinstance(ticket, int)
        work, job = self._jobs[ticket]
        return work(job)

    def cancel(self, ticket: object) -> None:
        assert isinstance(ticket, int)
        self.cancelled.append(ticket)


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ConfigError("three is wrong")
    return number


def test_a_cluster_changes_nothing_but_the_order_and_gets_no_more_than_it_can_take() -> None:
    cluster = FakeCluster()
    together = list(all_done_on(cluster, 4, double, range(20)))
    assert dict(together) == {number: 2 * number for number in range(20)}
    assert [job for job, _ in together][:2] == [3, 4]
    assert cluster.at_once_max == 4
    assert cluster.cancelled == []


def test_the_first_failure_at_a_cluster_ends_all_and_leaves_nothing_running() -> None:
    cluster = FakeCluster()
    with pytest.raises(ConfigError, match="three is wrong"):
        list(all_done_on(cluster, 4, fail_at_three, range(20)))
    assert sorted(cluster.cancelled) == [0, 1, 2]


def test_whoever_has_seen_enough_of_a_cluster_leaves_nothing_running() -> None:
    cluster = FakeCluster()
    for _ in all_done_on(cluster, 3, double, range(20)):
        break
    assert len(cluster.cancelled) == 2


def test_a_missing_ray_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'nightside\[ray\]'"), connected("auto"):
        pass
