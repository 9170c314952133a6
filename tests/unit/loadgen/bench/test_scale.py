"""`nightside bench scale`: each point is a scenario that can be read, and the document keeps the measurements."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.bench.main import bench
from loadgen.bench.scale import main as scale_main
from loadgen.bench.scale import measure as scale_measure
from loadgen.bench.scale.main import ScaleMeasurement, document_of, shortened, told
from loadgen.bench.scale.measure import RunFailed, ScaleLimits, ScaleReading, ScaleSample, _followed, measure, play
from loadgen.bench.scale.points import FLEET, LARGE, POINTS, QUEUE, ScalePoint, scenario_of
from loadgen.bench.scale.provenance import Provenance, provenance_here

MACHINE = {"cpu": "abacus", "cores": 2, "memory_gib": 4, "kernel": "1", "python": "CPython 3", "core": "plain Python"}
HERE = Provenance("abc", MACHINE)
READING = ScaleReading(30.0, "", 1.0, 10.0, 8.0, 3.0, 2**30, 4_000, 20_000, 100, 0.6, 3, "digest")
FREE = ScaleLimits(3600, 2**40)
SMALL = ScalePoint(FLEET, 3, 2, 6)


@pytest.mark.parametrize("point", [point for point in POINTS if point.replicas <= 1024], ids=lambda point: point.name)
def test_every_point_has_its_replicas_and_its_time(point: ScalePoint) -> None:
    scenario = scenario_of(point)
    assert sum(len(owned) for owned in scenario.fleet().values()) == point.replicas
    assert scenario.duration == point.simulated_s * 10**9


def test_a_point_is_played_to_its_end() -> None:
    reading = play(SMALL, FREE, print)
    assert reading.requests
    assert reading.is_whole
    assert reading.busy_share is not None
    assert 0.1 < reading.busy_share <= 1
    assert reading.digest == play(SMALL, FREE, print).digest


class LimitedTo(ScaleLimits):
    """Limits by simulated time, so that a run is stopped at the same point on every machine."""

    def broken_by(self, progress: ScaleSample) -> str:
        return "12 GiB" if progress.simulated_s >= 2 else ""


def test_a_run_that_takes_too_much_is_stopped_and_says_how_far_it_came() -> None:
    reading = play(SMALL, LimitedTo(1, 1), print)
    assert 2 <= reading.simulated_s < SMALL.simulated_s
    assert f"stopped at {reading.simulated_s:g} of 6 s by its limit of 12 GiB: " in told(SMALL, reading)
    assert document_of([ScaleMeasurement(SMALL, reading, HERE)])["rows"][0][2].endswith(" of 6: stopped")


def test_a_limit_counts_while_the_world_is_built() -> None:
    reading = play(SMALL, replace(FREE, rss_bytes_max=2**20), print)
    assert reading.built_cpu_s is not None
    assert reading.cpu_s is None
    assert "while it was built, by its limit of 0.000976562 GiB" in told(SMALL, reading)


def test_a_world_that_takes_too_long_to_build_is_not_built_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_for_ever(point: ScalePoint) -> None:
        end_s = time.process_time() + 20
        while time.process_time() < end_s:
            sum(range(1_000))
        raise AssertionError("nobody looked at it")

    monkeypatch.setattr(scale_measure, "scenario_of", build_for_ever)
    reading = play(SMALL, replace(FREE, cpu_s=0.01), print)
    assert reading.stopped_by == "0.000166667 min of CPU"
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_a_run_in_its_own_process_is_the_same_run() -> None:
    told_so_far: list[ScaleSample] = []
    reading = measure(SMALL, FREE, told_so_far.append)
    assert reading.is_whole
    assert reading.digest == play(SMALL, FREE, print).digest
    assert told_so_far[0].built_cpu_s == reading.built_cpu_s


def test_an_error_in_a_run_is_no_measurement() -> None:
    with pytest.raises(RunFailed, match=r"FileError: .*replicas") as failed:
        measure(replace(SMALL, replicas_a_region=-1), FREE, print)
    assert "Traceback" in str(failed.value.__cause__)


def test_the_command_fails_with_a_run_and_writes_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(point: ScalePoint, limits: ScaleLimits, on_progress: object) -> ScaleReading:
        raise RunFailed("AssertionError: time went backwards")

    monkeypatch.setattr(scale_main, "measure", failing)
    result = CliRunner().invoke(bench, ["scale", "--only", "queue", "-o", str(tmp_path / "scale.json")])
    assert result.exit_code == 1
    assert "could not be played: AssertionError: time went backwards" in result.output
    assert not list(tmp_path.iterdir())


def _tell_and_be_killed(pipe: Connection) -> None:
    pipe.send(ScaleSample(3.0, 1.0, 9.0, 8.0, 2**30, 50))
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(pipe: Connection) -> None:
    os._exit(3)


def followed(target: Callable[[Connection], None]) -> ScaleReading:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs,))
    process.start()
    theirs.close()
    with ours:
        return _followed(ours, process, print)


def test_one_that_was_killed_leaves_what_it_told_before_and_no_more() -> None:
    reading = followed(_tell_and_be_killed)
    assert (reading.simulated_s, reading.requests, reading.killed_by) == (3.0, 50, "SIGKILL")
    document = document_of([ScaleMeasurement(ScalePoint(LARGE, 100, 1_000, 30), reading, HERE)])
    row = dict(zip(document["head"], document["rows"][0], strict=True))
    assert row["simulated s"] == "3.0 of 30: killed"
    assert (row["CPU s to build"], row["CPU s"], row["slots busy"], row["longest queue"]) == ("1.0", "8.0", "–", "–")
    assert "was killed by SIGKILL, last heard of at 3 of 30 s." in "".join(document["text"])
    assert not any("limit" in line or "ten simulated minutes" in line for line in document["text"])


def test_one_that_left_without_a_word_was_not_killed() -> None:
    with pytest.raises(RunFailed, match="exit code 3"):
        followed(_leave)


def test_a_queue_that_nobody_else_may_shorten_gets_as_long_as_it_should() -> None:
    reading = play(ScalePoint(QUEUE, 1, 2, 6, queue=50), FREE, print)
    assert reading.queue_max is not None
    assert 30 < reading.queue_max <= 50


def test_the_document_has_a_table_and_says_what_ten_minutes_would_take() -> None:
    document = document_of(
        [ScaleMeasurement(ScalePoint(LARGE, 100, 1_000, 30), READING, HERE), ScaleMeasurement(SMALL, READING, HERE)]
    )
    assert [row[0] for row in document["rows"]] == [FLEET, LARGE]
    assert {len(row) for row in document["rows"]} == {len(document["head"])}
    assert any("ten simulated minutes would take 2 min of CPU" in line for line in document["text"])
    assert document["measurements"][0]["requests"] == 4_000


def test_a_short_run_is_a_tenth() -> None:
    assert shortened(ScalePoint(QUEUE, 1, 16, 120, queue=1_000)) == ScalePoint(QUEUE, 1, 16, 12, queue=100)


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
    asked: list[ScalePoint] = []

    def measured(point: ScalePoint, limits: ScaleLimits, on_progress: object) -> ScaleReading:
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


def test_figures_of_other_sources_are_measured_anew_and_those_of_other_kinds_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scale.json"
    queues = [point for point in POINTS if point.kind == QUEUE]
    older = [ScaleMeasurement(queues[0], READING, provenance_here()), ScaleMeasurement(queues[1], READING, HERE)]
    out.write_text(json.dumps(document_of([*older, ScaleMeasurement(SMALL, READING, HERE)])))
    asked: list[ScalePoint] = []

    def measured(point: ScalePoint, limits: ScaleLimits, on_progress: object) -> ScaleReading:
        asked.append(point)
        return READING

    monkeypatch.setattr(scale_main, "measure", measured)
    result = CliRunner().invoke(bench, ["scale", "--only", "queue", "--resume", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert asked == queues[1:]
    document = json.loads(out.read_text())
    (of_others,) = (line for line in document["text"] if "abacus" in line)
    assert of_others.startswith("Not to be compared with the others: 3 x 2 (fleet), measured on 2 cores of abacus")
    assert [each["provenance"]["version"] == "abc" for each in document["measurements"]] == [False] * 3 + [True]


def test_there_is_nothing_to_go_on_with_without_a_file() -> None:
    result = CliRunner().invoke(bench, ["scale", "--resume"])
    assert result.exit_code == 2
    assert "give --out" in result.output
