"""Percentiles are nearest ranks."""

from __future__ import annotations

from loadgen.report import Percentiles, percentiles


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles(range(1, 101)) == Percentiles(10, 25, 50, 75, 90, 99, 50.5)
    assert percentiles([30, 10, 20]) == Percentiles(10, 10, 20, 30, 30, 30, 20.0)
    assert percentiles([7]) == Percentiles(7, 7, 7, 7, 7, 7, 7.0)
    assert percentiles([]) is None
