from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadgen.planner.command import plan_command

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{number:02}.0000000,{9_000 if number % 10 == 0 else 300},{20}\n" for number in range(60)
)


def run(*words: object) -> Result:
    return CliRunner().invoke(plan_command, [str(word) for word in words], env={"COLUMNS": "240"})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def test_a_trace_becomes_a_table_and_a_page(tmp_path: Path, trace: Path) -> None:
    done = run(trace, "--formula", "--rate", 50_000, "-o", tmp_path / "plan.html")
    assert done.exit_code == 0, done.output
    assert "8,192" in done.stdout
    assert "Override: 65,536 KV blocks" in done.stdout
    assert "M$" in done.stdout
    assert "<svg" in (tmp_path / "plan.html").read_text()


def test_a_small_one_is_played_to_the_same_end(trace: Path) -> None:
    words = (
        trace,
        "--rate",
        20,
        "--profile",
        "llama-3.1-8b-l4",
        "--tpot",
        "500ms",
        "--ttft",
        "20s",
        "--threshold",
        4_096,
        "--seats",
        "reserved",
        "--requests",
        100,
        "--jobs",
        1,
        "--json",
    )
    first, again = run(*words), run(*words)
    assert first.exit_code == 0, first.output
    assert first.stdout == again.stdout
    (split,) = json.loads(first.stdout)["fleets"][0]["splits"]
    assert split["verified_instances"] >= 2


def test_the_recorded_rate_is_taken_where_none_is_given(trace: Path) -> None:
    done = run(trace, "--formula", "--json", "--profile", "llama-3.1-8b-l4")
    document = json.loads(done.stdout)
    assert document["load"]["rate_per_s"] == pytest.approx(60 / 59)
    assert document["profile"]["price"] is None


def test_a_price_of_one_s_own_is_told_as_that(trace: Path) -> None:
    done = run(trace, "--formula", "--json", "--profile", "llama-3.1-8b-l4", "--price", 0.5)
    assert json.loads(done.stdout)["profile"]["price"] == {"usd_per_hour": 0.5, "source": "--price", "date": "as given"}


def test_regions_take_the_hours_of_a_day(tmp_path: Path, trace: Path) -> None:
    day = tmp_path / "day.csv"
    day.write_text("hour,rate\n" + "".join(f"{hour},{100 if hour == 12 else 10}\n" for hour in range(24)))
    done = run(trace, "--formula", "--json", "--day", day, "--region", "us=100", "--region", "eu=100@6")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["load"]["rate_per_s"] == pytest.approx(110)
    designs = document["fleets"][0]["regions"]
    assert designs["split"]["pooled_instances"] < designs["split"]["region_local_instances"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "name one of"),
        (("--prompts", __file__), "go together"),
        (("TRACE", "--profile", "nobody"), "no such profile"),
        (("TRACE", "--threshold", 65_536), "below the window"),
        (("TRACE", "--region", "us"), "is not NAME=REQUESTS_PER_S"),
        (("TRACE", "--day", __file__), "say with --region"),
        (("TRACE", "--ttft", "soon"), "a duration such as"),
    ],
)
def test_it_says_how_it_is_used(trace: Path, words: tuple[object, ...], fault: str) -> None:
    done = run(*(trace if word == "TRACE" else word for word in words))
    assert done.exit_code == 2
    assert fault in " ".join(done.output.split())


def test_a_file_that_cannot_be_used_ends_with_1(tmp_path: Path, trace: Path) -> None:
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("profiles: {}\n")
    done = run(trace, "--profiles", profiles)
    assert done.exit_code == 1
    assert "profiles" in done.output


PRICES = """
version: 1
currency: EUR
regions:
  us: {replica_hour: 2, hours: [{days: weekend, from: "00:00", until: "24:00", replica_hour: 1}]}
  eu: {replica_hour: 2, billing: per_use, requests_per_replica: 16}
"""


def test_what_the_regions_fleets_cost_over_a_day_is_told_where_there_are_prices(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    (tmp_path / "day.csv").write_text("hour,rate\n0,1\n12,0\n24,1\n")
    profile = ("--profile", "llama-3.1-8b-l4", "--formula", "--seats", "reserved", "--threshold", 4_096)
    regions = ("--region", "us=20", "--region", "eu=20", "--region", "ap=20", "--day", tmp_path / "day.csv")
    done = run(trace, *profile, *regions, "--prices", tmp_path / "prices.yaml", "--json")
    assert done.exit_code == 0, done.output
    design = json.loads(done.stdout)["fleets"][0]["regions"]["homogeneous"]
    day, count = design["day"], design["by_region"]["us"]["all"]
    assert day["unpriced"] == ["ap"]
    assert day["weekday"]["regions"]["us"]["money"] == count * 24 * 2
    assert day["weekend"]["regions"]["us"]["money"] == count * 24
    by_use = day["weekday"]["regions"]["eu"]
    assert by_use["money"] == pytest.approx(by_use["replica_hours"] * 2)
    assert count * 24 / 3 < by_use["replica_hours"] < count * 24 * 2 / 3, "half of the peak, on average"
    told = run(trace, *profile, *regions, "--prices", tmp_path / "prices.yaml")
    assert "EUR a weekday" in told.stdout
    assert "not in the price list" in told.stdout
    alone = run(trace, *profile, "--rate", 20, "--prices", tmp_path / "prices.yaml")
    assert (alone.exit_code, "say with --region where" in alone.output) == (2, True)
