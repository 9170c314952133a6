from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.events import DrainRequested, TimePassed
from gateway.core.vocabulary import GatewayId
from gateway.records.journal import new_header
from gateway.records.journal_cli import replay
from gateway.request.driver import GatewayStep
from mesh.journal_lines import encode_header, encode_step
from mesh.steps import Step
from tests.support.core import US


@pytest.fixture
def story(tmp_path: Path) -> Path:
    core = GatewayCore(GatewayId("us-1"), US, seed=1)
    events: list[Event] = [DrainRequested(), TimePassed()]
    steps = [Step(at, event, core.handle(event, at)) for at, event in enumerate(events)]
    return write(tmp_path, steps)


def write(folder: Path, steps: list[GatewayStep]) -> Path:
    path = folder / "a.journal"
    header = new_header(GatewayId("us-1"), US, PlacementConfig(), seed=1, story="s")
    path.write_bytes(encode_header(header) + b"".join(map(encode_step, steps)))
    return path


def test_an_equal_story_exits_with_0(story: Path) -> None:
    done = CliRunner().invoke(replay, [str(story)])
    assert (done.exit_code, done.output.startswith("equal: 2 steps")) == (0, True)


def test_a_divergence_exits_with_1_and_shows_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path, [Step(0, DrainRequested(), [])])
    done = CliRunner().invoke(replay, [str(path)])
    assert done.exit_code == 1
    assert "diverged at step 1" in done.output
    assert "  DrainRequested()" in done.output
    assert "  nothing" in done.output
    assert "  PublishLoad(" in done.output


def test_what_cannot_be_read_exits_with_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(replay, [str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "unreadable" in done.stderr


def test_json_is_for_programs(story: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(replay, ["--json", str(story)])
    assert json.loads(done.output)["divergence"] is None
    done = CliRunner().invoke(replay, ["--json", str(tmp_path / "none")])
    assert (done.exit_code, list(json.loads(done.output))) == (2, ["unreadable"])


def test_a_file_is_needed() -> None:
    assert CliRunner().invoke(replay, []).exit_code == 2
