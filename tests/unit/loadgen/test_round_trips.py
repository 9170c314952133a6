"""The table of round trips: read both ways, and wrong lines are named."""

from __future__ import annotations

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.round_trips import parse_round_trips

US = RegionName("us-east-1")
EU = RegionName("eu-west-1")
AP = RegionName("ap-northeast-1")


def test_the_table_reads_both_ways() -> None:
    table = parse_round_trips("# measured\nus-east-1, eu-west-1, 70\n\nus-east-1,ap-northeast-1,149 # median\n")
    assert table.round_trip_s(EU, US) == table.round_trip_s(US, EU) == 0.07
    assert table.round_trip_s(AP, AP) == 0.0
    assert table.regions == (AP, EU, US)


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("a,b", "expected region,region,milliseconds"),
        ("a,b,soon", "'soon' is not a number"),
        ("a,a,1", "two different regions"),
        ("a,b,-1", "0 to 60000"),
        ("a,b,nan", "0 to 60000"),
        ("a,b,1\nb,a,2", "twice"),
    ],
)
def test_a_wrong_line_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_round_trips(text)
