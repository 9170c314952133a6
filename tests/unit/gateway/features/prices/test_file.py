"""The prices file: its allowed contents, and the faults reported for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.features.prices.price_table import EgressPrice
from gateway.core.vocabulary import PoolName, RegionName
from gateway.features.prices.file import parse_prices, read_prices, read_prices_file
from mesh.faults import ConfigError, FileError

ROOT = Path(__file__).parents[5]
EXAMPLE = ROOT / "docs/examples/prices.yaml"
MONDAY_S = 1_774_828_800
SMALLEST = """
version: 1
currency: EUR
regions:
  us: {replica_hour: 2.5}
"""


def read(tmp_path: Path, text: str) -> str:
    """Fault reported for this text."""
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as refused:
        read_prices(path)
    return str(refused.value)


def test_the_example_is_marked_as_one_and_read_whole() -> None:
    assert "EXAMPLE FIGURES" in EXAMPLE.read_text()
    prices = read_prices(EXAMPLE)
    at = {(each.region, each.pool): each for each in prices.at(MONDAY_S).replicas}
    assert at[RegionName("us-east-1"), PoolName("")].hour_micros == 4_000_000
    long = at[RegionName("eu-west-1"), PoolName("long")]
    assert (long.hour_micros, long.requests_at_once, long.is_per_use) == (7_900_000, 16, False)
    assert at[RegionName("ap-northeast-1"), PoolName("")].is_per_use
    assert EgressPrice(RegionName("us-east-1"), RegionName(""), 90_000) in prices.egress
    assert prices.carbon_micros == 100_000
    assert prices.valid_until_s == 1_830_297_600, "the end of the day that it names"


def test_a_pool_has_what_its_region_says_where_it_says_nothing_hours_too() -> None:
    prices = read_prices(EXAMPLE)
    noon = {(each.region, each.pool): each for each in prices.at(MONDAY_S + 12 * 3600).replicas}
    assert noon[RegionName("eu-west-1"), PoolName("long")].busy_milligrams == (1600 - 450) * 180


def test_as_json_it_says_the_same_and_goes_by_the_same_digest() -> None:
    file = read_prices_file(EXAMPLE)
    assert parse_prices(file.as_document()) == file.as_list()
    assert read_prices(EXAMPLE).digest == file.digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("currency: EUR -> currency: Euro", "line 3: currency: 'Euro' is not a currency such as EUR or USD"),
        ("2.5 -> -1", "line 5: regions.us.replica_hour: should be greater than or equal to 0"),
        ("2.5 -> 2.5, replica_hours: 1", "replica_hours: is not a known key; is `replica_hour` meant?"),
        ("2.5 -> 2.5, billing: per_use", "regions.us.requests_per_replica: is missing beside billing: per_use"),
        ("2.5 -> 2.5, carbon_g_per_kwh: 3", "regions.us.kilowatts: is missing beside carbon_g_per_kwh"),
        (
            '2.5 -> 2.5, hours: [{from: "08:00", until: "07:00", replica_hour: 1}]',
            "regions.us.hours[0].until: should be later than from",
        ),
        (
            '2.5 -> 2.5, hours: [{from: "8", until: "09:00", replica_hour: 1}]',
            "regions.us.hours[0].from: '8' is not a time of day (UTC) such as 08:30",
        ),
        (
            '2.5 -> 2.5, hours: [{from: "01:00", until: "03:00", replica_hour: 1},'
            ' {days: weekend, from: "02:00", until: "04:00", replica_hour: 2}]',
            "regions.us.hours[1]: says something else of a time that an entry before it names",
        ),
        ("version: 1 -> version: 1\nvalid_until: 2027-02-30", "valid_until: '2027-02-30' is not a date"),
        ("version: 1 -> version: 1\negress: {us: {eu: 1}}", "egress.us.eu: is no region of this file"),
        ("version: 1 -> version: 1\negress: {us: {us: 1}}", "egress.us.us: what stays in a region is no egress"),
        ("2.5 -> 2.5, pools: {long: {kilowatts: 1}}", "regions.us.pools.long.requests_per_replica: is missing"),
    ],
)
def test_a_fault_names_the_key(tmp_path: Path, change: str, said: str) -> None:
    old, new = change.split(" -> ")
    assert said in read(tmp_path, SMALLEST.replace(old, new))


def test_an_empty_file_and_one_that_is_not_there_are_told() -> None:
    with pytest.raises(FileError, match="cannot be read"):
        read_prices(Path("/nowhere/prices.yaml"))


def test_what_comes_over_the_wire_is_judged_by_the_same_keys() -> None:
    with pytest.raises(ConfigError, match="currency: is missing"):
        parse_prices('{"version": 1, "regions": {"us": {"replica_hour": 1}}}')
    with pytest.raises(ConfigError, match="it is not JSON"):
        parse_prices("{")
