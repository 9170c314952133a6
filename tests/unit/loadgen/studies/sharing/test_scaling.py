from __future__ import annotations

import json

from loadgen.simulator.scaling_sections import ScalingMode
from loadgen.studies.sharing import scaling


def run(hours: float, actions: int, p99_s: float, most: int = 2) -> list[dict[str, object]]:
    regions = {name: {"wanted": [[0.0, 1], [5.0, most]]} for name in scaling.REGIONS}
    return [
        {
            "replica_hours": hours,
            "actions": actions,
            "ttft_p99_s": p99_s,
            "within_slo_share": 0.99,
            "forwarded_share": None,
            "failed": 0,
            "requests": 100,
            "regions": regions,
        }
    ]


def test_a_mesh_plays_a_day_and_says_what_it_took() -> None:
    """The day is so short that it shows only that it can be played."""
    told = scaling.played("code", ScalingMode.MESH, 1, is_quick=True)
    assert told["failed"] == 0
    assert isinstance(told["requests"], int)
    assert told["requests"] > 10
    assert isinstance(told["replica_hours"], float)
    assert 0 < told["replica_hours"] <= 24 * 15
    assert json.loads(json.dumps(told)) == told


def test_the_page_shows_what_was_expected_and_what_came_of_it() -> None:
    modes = {"none": run(360, 0, 0.3), "region": run(120, 10, 0.4), "mesh": run(90, 5, 0.5)}
    after = {"curve": "chat", "what": "more headroom", "modes": {"region": run(10, 1, 1.0), "mesh": run(9, 1, 1.0)}}
    measured = {
        "expected": scaling.EXPECTED,
        "is_quick": False,
        "day_s": 3600,
        "curves": {"code": modes},
        "afterwards": [after],
    }
    page = scaling.section(measured)
    assert page.startswith("## ")
    assert scaling.EXPECTED in page
    assert "| the mesh together | 90.0 | 5 | 0.50 s | 99.00% | 0.0% | 0 of 100 |" in page
    assert "-25.0% replica-hours beside regions on their own, and -37.5% beside" in page
    assert "144, reckoned" in page
    assert "### Asked after the look" in page


def test_regions_have_one_curve_each_moved_by_its_clock() -> None:
    one = scaling.scenario("code", ScalingMode.MESH, 1)
    curves = [clients.arrivals.as_curve().points for clients in one.clients if clients.arrivals is not None]
    assert len(set(curves)) == 3
    assert {round(max(rate for _, rate in curve), 6) for curve in curves} == {1.2}
