from __future__ import annotations

import pytest

from loadgen.traces.rates import fitted, parse_rates
from loadgen.traces.rows import RowFault

DAY = [(0.0, 1.0), (6.0, 3.0), (12.0, 5.0), (18.0, 3.0)]


@pytest.mark.parametrize(
    ("titles", "rows", "hours"),
    [
        ("t_seconds,req_per_s", ["0,5", "3600,6"], [0, 1]),
        ("minute_since_UTC,per_min,low,high", ["0,5,1,9", "90,6,1,9"], [0, 1.5]),
        ("hour_utc,rate", ["0,5", "2,6"], [0, 2]),
        ("day_index,hour_utc,rate", ["0,23,5", "1,1,6"], [23, 25]),
    ],
)
def test_titles_tell_the_unit(titles: str, rows: list[str], hours: list[float]) -> None:
    assert parse_rates([titles, *rows]) == tuple(zip(hours, (5, 6), strict=True))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (["0,5", "x,6"], "line 3: 'x,6' is no time and rate"),
        (["0,5", "1"], "line 3: '1' is no time and rate"),
        (["0,5", "1,-2"], "line 3: -2.0 is no rate"),
        (["0,5", "1,nan"], "line 3: nan is no rate"),
        (["5,5", "1,2"], "line 3: times should be in order"),
        (["5,5"], "a curve has at least two points"),
    ],
)
def test_a_curve_with_a_hole_is_refused(rows: list[str], complaint: str) -> None:
    with pytest.raises(RowFault, match=complaint.replace(".", r"\.")):
        parse_rates(["seconds,rate", *rows])


def test_a_curve_is_squeezed_and_raised_to_its_peak() -> None:
    curve = fitted(DAY, day_s=240, peak=10)
    assert [curve.rate_at(at_s) for at_s in (0, 60, 120, 180, 240)] == [2, 6, 10, 6, 2]


def test_a_mean_is_a_mean() -> None:
    curve = fitted(DAY, day_s=240, mean=6)
    assert sum(curve.rate_at(second) for second in range(240)) / 240 == pytest.approx(6)


def test_a_clock_that_is_ahead_has_its_peak_earlier() -> None:
    curve = fitted(DAY, day_s=240, peak=5, shift_hours=9)
    assert max(range(240), key=curve.rate_at) == 30
    assert curve.rate_at(0) == curve.rate_at(240) == pytest.approx(4)
    assert fitted(DAY, day_s=240, peak=5, from_hours=9) == curve
