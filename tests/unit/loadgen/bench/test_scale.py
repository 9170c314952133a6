"""`nightside bench scale`: each point is a scenario that can be read, and the document keeps what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.bench.main import bench
from loadgen.bench.scale.main import document_of, shortened
from loadgen.bench.scale.measure import Reading, play
from loadgen.bench.scale.points import FLEET, LARGE, POINTS, QUEUE, Point, scenario_of

READING = Reading(10.0, 8.0, 2**30, 4_000, 20_000, 100, 0.6, 3, "digest")
SMALL = Point(FLEET, 3, 2, 6)


@pytest.mark.parametrize("point", [point for point in POINTS if point.replicas <= 1024], ids=lambda point: point.name)
def test_every_point_has_its_replicas_and_its_time(point: Point) -> None:
    scenario = scenario_of(point)
    assert sum(len(owned) for owned in scenario.fleet().values()) == point.replicas
    assert scenario.duration == point.simulated_s * 10**9


def test_a_point_is_played_to_its_end() -> None:
    reading = play(SMALL)
    assert reading.requests > 0
    assert 0.1 < reading.busy_share <= 1
    assert reading == replace(
        play(SMALL), wall_s=reading.wall_s, cpu_s=reading.cpu_s, rss_bytes_max=reading.rss_bytes_max
    )


def test_a_queue_that_nobody_else_may_shorten_gets_as_long_as_it_should() -> None:
    reading = play(Point(QUEUE, 1, 2, 6, queue=50))
    assert 30 < reading.queue_max <= 50


def test_the_document_has_a_table_and_says_what_ten_minutes_would_take() -> None:
    document = document_of([(Point(LARGE, 100, 1_000, 30), READING), (SMALL, READING)])
    assert [row[0] for row in document["rows"]] == [FLEET, LARGE]
    assert {len(row) for row in document["rows"]} == {len(document["head"])}
    assert any("ten simulated minutes would take 3 min of CPU" in line for line in document["text"])
    assert document["measurements"][0]["requests"] == 4_000


def test_a_short_run_is_a_tenth() -> None:
    assert shortened(Point(QUEUE, 1, 16, 120, queue=1_000)) == Point(QUEUE, 1, 16, 12, queue=100)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    out.write_text(json.dumps({"measurements": [{}]}))
    result = CliRunner().invoke(bench, ["scale", "--quick", "--only", "queue", "-o", str(out)])
    assert result.exit_code == 1
    assert "is no document of this bench" in result.output
