"""One seed, one story: the digest of the whole trace is the same in another process, under another hash seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DURATIONS = {"skewed_day": "8s", "bad_day": "70s", "failover": "70s"}
"""Virtual time that is played of each scenario; the bad day's first faults come at 30, 45 and 60 seconds. `failover`
has a controller."""
PLAY = """
import sys
from pathlib import Path
from loadgen.simulator.scenario import load_scenario
from loadgen.simulator.world import World
changes = {"duration": sys.argv[3], "warm_up": "1s", "drain": "120s", "seed": int(sys.argv[2])}
scenario = load_scenario(Path(sys.argv[1]), changes)
stories = [World(scenario, run).play() for run in scenario.runs]
print([(story.digest, story.control) for story in stories])
"""


def story(scenario: str, seed: int, hash_seed: int) -> str:
    command = [sys.executable, "-c", PLAY, f"loadgen/scenarios/{scenario}.yaml", str(seed), DURATIONS[scenario]]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONHASHSEED": str(hash_seed)}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", DURATIONS)
def test_the_same_seed_tells_the_same_story_under_any_hash_seed(scenario: str) -> None:
    assert story(scenario, 1, hash_seed=1) == story(scenario, 1, hash_seed=2)


@pytest.mark.nightly
def test_another_seed_tells_another_story() -> None:
    assert story("skewed_day", 1, hash_seed=1) != story("skewed_day", 2, hash_seed=1)
