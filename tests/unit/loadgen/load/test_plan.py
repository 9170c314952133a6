"""Live runs made from scenarios: the target, key and time of each client's requests; and faults of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.live_client import EndpointDialect
from loadgen.live_runner import ClosedLoop, LoadPlan, OpenLoop
from loadgen.load.plan import Keys, LiveLimits, only_simulated, plan_of, read_keys, urls_by_region
from loadgen.simulator.scenario import Scenario, parse_scenario
from mesh.faults import ConfigError
from tests.support.scenarios import small_document

US, EU = RegionName("us"), RegionName("eu")
DOCUMENT = small_document(
    clients=[
        {"region": "us", "workload": "chat", "clients": 2, "tenant": "acme"},
        {"region": "eu", "workload": "chat", "arrivals": {"rate": 4}},
    ]
)


def scenario(**changes: Any) -> Scenario:
    return parse_scenario(DOCUMENT | changes, Path("small.yaml"))


def plan(loaded: Scenario, keys: Keys | None = None, *, in_flight_max: int = 10) -> LoadPlan:
    urls = {US: ("http://us",), EU: ("http://eu",)}
    return plan_of(loaded, urls, keys or Keys(), EndpointDialect(ModelName("m")), LiveLimits(in_flight_max))


def test_a_url_without_a_region_is_for_every_region_that_has_none_of_its_own() -> None:
    found = urls_by_region(["https://all.example/v1/", "eu=http://one:1/base", "eu=http://two"], scenario())
    assert found == {US: ("https://all.example",), EU: ("http://one:1/base", "http://two")}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["us=http://a"], "where do the clients of eu send"),
        (["http://a", "mars=http://b"], "no clients are in 'mars'; they are in us, eu"),
        (["us=ftp://a"], "is no http:// or https:// URL"),
        (["us=http://"], "is no http:// or https:// URL"),
        (["http://a/?x=1"], "no query"),
    ],
)
def test_urls_that_make_no_sense_are_refused(given: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        urls_by_region(given, scenario())


def test_the_nearest_owner_of_a_key_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text('us/acme: "one"\nus: "two"\n')
    keys = read_keys(["*=three=", "us=four"], file, scenario())
    assert [keys.of("us", "acme"), keys.of("us", "other"), keys.of("eu", "other")] == ["one", "four", "three="]
    assert Keys().of("us", "acme") is None
    group = plan(scenario(), keys).groups[0]
    assert (group.key_of(""), group.key_of("from a trace")) == ("one", "four")


@pytest.mark.parametrize("given", ["sesame", "mars=sesame", "us=sesame\n", "us=ses\u00e4me"])
def test_no_complaint_repeats_a_key(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keys([given], None, scenario())
    assert "sesame" not in str(caught.value)


def test_loops_are_the_scenarios() -> None:
    made = plan(scenario())
    closed, opened = (group.load for group in made.groups)
    assert isinstance(closed, ClosedLoop)
    assert closed.clients == 2
    assert isinstance(opened, OpenLoop)
    times = [at_s for at_s, _ in opened.schedule]
    assert times == sorted(times)
    assert 20 < len(times) < 60
    again = plan(scenario()).groups[1].load
    assert isinstance(again, OpenLoop)
    assert [at_s for at_s, _ in again.schedule] == times
    assert (made.load_s, made.drain_s) == (10.0, 60.0)


def test_what_was_recorded_comes_when_it_came(tmp_path: Path) -> None:
    rows = ['{"at": 4, "input_tokens": 20, "output_tokens": 5}', '{"at": 1, "input_tokens": 30, "output_tokens": 5}']
    (tmp_path / "trace.jsonl").write_text("\n".join(rows))
    workloads = {"recorded": {"trace": {"file": "trace.jsonl"}}}
    document = DOCUMENT | {"workloads": workloads, "clients": [{"region": "us", "workload": "recorded"}]}
    (group,) = plan(parse_scenario(document, tmp_path / "small.yaml")).groups
    assert isinstance(group.load, OpenLoop)
    programs = list(group.load.schedule)
    assert [at_s for at_s, _ in programs] == [1, 4]
    assert [len(program.messages(0, {})[0]["content"]) for _, program in programs] == [120, 80]


def test_more_users_than_may_be_in_flight_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 is less than the scenario's 2 clients"):
        plan(scenario(), in_flight_max=1)


def test_what_only_a_simulation_can_do_is_named() -> None:
    fault = {"kind": "replica_crash", "target": "us/0", "at": "1s", "lasts": "1s"}
    runs = [{"system": "skywalker"}, {"system": "region_local"}]
    words = only_simulated(scenario(faults=[fault], runs=runs))
    assert words[0] == "1 faults"
    assert words[1].startswith("2 runs")
    assert only_simulated(scenario()) == []
