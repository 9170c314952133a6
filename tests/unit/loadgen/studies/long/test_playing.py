"""Clients of each region ask at the recorded rates of its own time of day, by the mesh's one name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.scenario import DemoScenario
from loadgen.live_runner import LiveClientGroup, OpenLoop
from loadgen.names import NameResolver
from loadgen.studies.long.playing import FROM_HOURS, _load, _plan, _regions_of_one, _scenario, play_long
from mesh.clock import Clock
from mesh.faults import ConfigError

REGIONS = [each.name for each in DemoScenario().regions]


def curve_of(folder: Path) -> Path:
    """Rates of a week, of which the hour at the run's begin, as the recording tells it, is the busiest by far."""
    rows = [f"{hour // 24},{hour % 24},{1000 if hour == FROM_HOURS else 1}" for hour in range(7 * 24)]
    (folder / "rates.csv").write_text("\n".join(["day,hour_utc,invocations_per_min", *rows]) + "\n")
    return folder / "rates.csv"


def starts_of(group: LiveClientGroup) -> list[float]:
    assert isinstance(group.load, OpenLoop)
    return [at_s for at_s, _ in group.load.schedule]


def test_each_regions_clients_come_by_their_own_clock_and_network(tmp_path: Path) -> None:
    networks = {name: f"127.77.{number}.0/24" for number, name in enumerate(REGIONS, 1)}
    name = NamedMesh("http://llm.demo.test:1", (("127.0.0.1", 53),), networks)
    plan = _plan(_load(480.0, curve_of(tmp_path)), name, Clock())
    assert [each.region for each in plan.groups] == REGIONS
    assert plan.load_s == 480.0
    for group in plan.groups:
        assert group.urls == (name.url,)
        assert isinstance(group.resolver, NameResolver)
        assert group.resolver.network == networks[group.region]
    busy = {each.region: starts_of(each) for each in plan.groups}
    first_hour = {region: sum(at_s < 60.0 for at_s in starts) for region, starts in busy.items()}
    assert first_hour[RegionName("eu-west-1")] > 10 * first_hour[RegionName("ap-northeast-1")]


def test_every_gateway_has_a_journal_of_its_own(tmp_path: Path) -> None:
    regions = _scenario(tmp_path).regions
    assert [each.name for each in regions] == REGIONS
    assert len({str(each.sections["journal"]) for each in regions}) == len(REGIONS)


def test_a_region_of_one_gateway_that_may_send_nowhere_else_is_europe(tmp_path: Path) -> None:
    scenario = _scenario(tmp_path)
    assert _regions_of_one(scenario) == {RegionName("eu-west-1")}
    more = replace(scenario, regions=tuple(replace(each, gateways=2) for each in scenario.regions))
    assert _regions_of_one(more) == set()


@pytest.mark.parametrize("text", [None, "day,hour_utc,rate\n1,1,x\n"])
def test_a_curve_that_cannot_be_read_fails_before_anything_runs(tmp_path: Path, text: str | None) -> None:
    curve = tmp_path / "rates.csv"
    if text is not None:
        curve.write_text(text)
    with pytest.raises(ConfigError, match=r"rates\.csv"):
        play_long(480.0, curve, lambda _: None)
