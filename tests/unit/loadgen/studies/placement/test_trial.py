"""The table for developers who change a placement rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadgen.studies.main import results


def tried(folder: Path, *arguments: str) -> Result:
    words = ["trial", *arguments, "--cache", str(folder / "cache"), "--jobs", "1"]
    return CliRunner().invoke(results, words, catch_exceptions=False)


SHORT = ("--duration", "50s", "--clients", "2")
"""Options for little more than the warm-up, with few clients."""


def test_without_a_workload_it_names_what_there_is(tmp_path: Path) -> None:
    done = tried(tmp_path)
    assert "\narena-8        Arena-like, 3/3/2\n" in done.output
    assert "our default, " in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("nothing",), 2, "no such workload: nothing; there are: arena, "),
        (("arena", "--policy", "nobody"), 1, "'nobody' is none of cost, prefix, "),
        (("arena", "--set", "placement.nothing=1", "--policy", "our default"), 1, "placement.nothing"),
        (("arena", "--set", "nothing"), 2, "'nothing' is not KEY=VALUE"),
    ],
)
def test_wrong_use_is_told(arguments: tuple[str, ...], code: int, complaint: str, tmp_path: Path) -> None:
    done = tried(tmp_path, *arguments)
    assert done.exit_code == code
    assert complaint in done.output


def test_policies_stand_beside_each_other_with_what_they_have_of_the_best(tmp_path: Path) -> None:
    done = tried(tmp_path, "arena", *SHORT, "--policy", "LMetric", "--policy", "round_robin")
    assert done.exit_code == 0
    title, head, first, *_ = (line for line in done.stdout.splitlines() if line)
    assert title == "Arena-like, 4/4/4; 50s; 2 clients a region"
    assert head.split()[:3] == ["of", "best", "requests/s"]
    assert first.split()[1] == "1.000"


def test_what_was_said_earlier_is_shown_beside_and_not_played_again(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(tried(tmp_path, "arena", *SHORT, "--policy", "LMetric", "--json").stdout)
    (row,) = json.loads(earlier.read_text())
    assert (row["policy"], row["seeds"], row["requests_per_s_by_seed"]) == ("LMetric", 1, [row["requests_per_s"]])
    earlier.write_text(json.dumps([row | {"requests_per_s": 1e9}]))
    both = tried(tmp_path, "arena", *SHORT, "--policy", "round robin", "--against", str(earlier), "--json").stdout
    assert [(each["policy"], each["requests_per_s"] == 1e9) for each in json.loads(both)] == [
        ("round robin", False),
        ("LMetric", True),
    ]


def test_a_setting_changes_ours_and_no_baseline(tmp_path: Path) -> None:
    words = ("arena", *SHORT, "--policy", "our default", "--policy", "LMetric", "--json")
    plain = json.loads(tried(tmp_path, *words).stdout)
    alone = json.loads(tried(tmp_path, *words, "--set", "placement.policy=random").stdout)
    assert plain[1] == alone[1]
    assert plain[0] != alone[0]
