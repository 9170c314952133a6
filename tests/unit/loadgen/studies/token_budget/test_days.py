from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.studies.token_budget.days import made_up_day, play, recorded_day, round_trip_s


def test_a_mesh_needs_no_more_than_regions_by_themselves() -> None:
    local, mesh = (play("reserved", "homogeneous", routing, None, quick=True) for routing in ("region-local", "mesh"))
    assert local["instances"] == sum(local["pools"]["all"]["by_region"])
    assert mesh["instances"] <= local["instances"]
    assert local["pools"]["all"]["forwarded_share"] == 0
    assert mesh["pools"]["all"]["forwarded_share"] > 0
    assert mesh["pools"]["all"]["requests"] > 2 * local["pools"]["all"]["requests"]


def test_a_split_has_two_pools_and_all_requests_between_them() -> None:
    found = play("paged", "split", "mesh", None, quick=True)
    assert set(found["pools"]) == {"short", "long"}
    assert found["pools"]["short"]["requests"] > found["pools"]["long"]["requests"] > 0


def test_a_day_is_read_from_a_file_or_made_up(tmp_path: Path) -> None:
    path = tmp_path / "hourly.csv"
    path.write_text(
        "day,hour,rate\n" + "".join(f"{day},{hour},{day * 100 + hour}\n" for day in range(6) for hour in range(24))
    )
    assert recorded_day(path)[:2] == ((0.0, 400.0), (1.0, 401.0))
    made = [rate for _, rate in made_up_day()]
    assert max(made) / min(made) == pytest.approx(9)


def test_round_trips_are_the_same_both_ways() -> None:
    assert round_trip_s(0, 2) == round_trip_s(2, 0) == 0.149
