"""`nightside bench scale`: each point is a scenario that can be read, and the document keeps what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.bench.main import bench
from loadgen.bench.scale import main as scale_main
from loadgen.bench.scale.main import document_of, shortened, told
from loadgen.bench.scale.measure import Limits, Reading, Taken, _followed, play
from loadgen.bench.scale.points import FLEET, LARGE, POINTS, QUEUE, Point, scenario_of

READING = Reading(30.0, "", 1.0, 10.0, 8.0, 3.0, 2**30, 4_000, 20_000, 100, 0.6, 3, "digest")
FREE = Limits(3600, 2**40)
SMALL = Point(FLEET, 3, 2, 6)


@pytest.mark.parametrize("point", [point for point in POINTS if point.replicas <= 1024], ids=lambda point: point.name)
def test_every_point_has_its_replicas_and_its_time(point: Point) -> None:
    scenario = scenario_of(point)
    assert sum(len(owned) for owned in scenario.fleet().values()) == point.replicas
    assert scenario.duration == point.simulated_s * 10**9


def test_a_point_is_played_to_its_end() -> None:
    reading = play(SMALL, FREE, print)
    assert reading.requests > 0
    assert not reading.stopped_by
    assert 0.1 < reading.busy_share <= 1
    assert reading.digest == play(SMALL, FREE, print).digest


def test_a_run_that_takes_too_much_is_stopped_and_says_how_far_it_came() -> None:
    reading = play(SMALL, replace(FREE, rss_bytes_max=2**20), print)
    assert reading.simulated_s < SMALL.simulated_s
    assert "stopped at 0 simulated seconds by 0.000976562 GiB" in told(SMALL, reading)
    assert document_of([(SMALL, reading)])["rows"][0][2] == "0.0 of 6: stopped"


def test_one_that_was_killed_leaves_what_it_told_before() -> None:
    ours, theirs = Pipe(duplex=False)
    theirs.send(Taken(3.0, 9.0, 8.0, 2**30, 50))
    theirs.close()
    reading = _followed(ours, print)
    assert (reading.simulated_s, reading.requests, reading.stopped_by) == (3.0, 50, "its process was killed")


def test_a_queue_that_nobody_else_may_shorten_gets_as_long_as_it_should() -> None:
    reading = play(Point(QUEUE, 1, 2, 6, queue=50), FREE, print)
    assert 30 < reading.queue_max <= 50


def test_the_document_has_a_table_and_says_what_ten_minutes_would_take() -> None:
    document = document_of([(Point(LARGE, 100, 1_000, 30), READING), (SMALL, READING)])
    assert [row[0] for row in document["rows"]] == [FLEET, LARGE]
    assert {len(row) for row in document["rows"]} == {len(document["head"])}
    assert any("ten simulated minutes would take 2 min of CPU" in line for line in document["text"])
    assert document["measurements"][0]["requests"] == 4_000


def test_a_short_run_is_a_tenth() -> None:
    assert shortened(Point(QUEUE, 1, 16, 120, queue=1_000)) == Point(QUEUE, 1, 16, 12, queue=100)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    out.write_text(json.dumps({"measurements": [{}]}))
    result = CliRunner().invoke(bench, ["scale", "--quick", "--only", "queue", "-o", str(out)])
    assert result.exit_code == 1
    assert "is no document of this bench" in result.output


def test_what_was_measured_is_kept_at_once_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scale.json"
    asked: list[Point] = []

    def measured(point: Point, limits: Limits, on_progress: object) -> Reading:
        asked.append(point)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return replace(READING, stopped_by="12 GiB" if len(asked) == 2 else "")

    monkeypatch.setattr(scale_main, "measure", measured)
    CliRunner().invoke(bench, ["scale", "--only", "queue", "-o", str(out)])
    assert len(json.loads(out.read_text())["measurements"]) == 2
    result = CliRunner().invoke(bench, ["scale", "--only", "queue", "--resume", "-o", str(out)])
    assert result.exit_code == 0
    assert asked[3:] == asked[1:3], "the first came to its end"
    assert [each["point"]["queue"] for each in json.loads(out.read_text())["measurements"]] == [100, 1_000, 10_000]
