from __future__ import annotations

import json

import pytest

from loadgen.traces.rows import RowFault, Unreadable
from loadgen.traces.servegen import RateWindow, ServiceClient, drawn, parse_datasets, parse_hours_of_day, parse_windows

HOURS = ",".join(f"h{hour:02}" for hour in range(24))


def dataset(**windows: object) -> str:
    return json.dumps({at.removeprefix("at"): fields for at, fields in windows.items()})


def fields(inputs: str = "{10: 0.5, 20: 0.5}", outputs: str = "{7: 1.0}") -> dict[str, str]:
    return {"input_tokens": inputs, "output_tokens": outputs}


def test_token_counts_are_drawn_as_likely_as_they_are() -> None:
    found = parse_datasets({"0": dataset(at0=fields("{10: 0.25, 20: 0.0, 30: 0.75}"))}, unreadable := Unreadable())
    client = ServiceClient("0", (RateWindow(0, 10),), found["0"])
    rows = drawn([client], seed=1, from_s=0, until_s=400, scale=1, unreadable=unreadable).rows
    tokens = [row.passage.tokens for row in rows]
    assert set(tokens) == {10, 30}
    assert 0.7 < tokens.count(30) / len(tokens) < 0.8
    assert {row.output_tokens for row in rows} == {7}
    assert 3700 < len(rows) < 4300


def test_each_part_of_the_day_has_its_own_counts_and_rates() -> None:
    found = parse_datasets({"0": dataset(at0=fields("{1: 1}"), at100=fields("{2: 1}"))}, unreadable := Unreadable())
    client = ServiceClient("0", (RateWindow(0, 1), RateWindow(50, 0), RateWindow(100, 5, 2.0)), found["0"])
    rows = drawn([client], seed=1, from_s=20, until_s=200, scale=2, unreadable=unreadable).rows
    assert {row.passage.tokens for row in rows if row.at_s < 100} == {1}
    assert {row.passage.tokens for row in rows if row.at_s >= 100} == {2}
    assert not [row for row in rows if row.at_s < 20 or 50 <= row.at_s < 100 or row.at_s > 200]


def test_a_seed_draws_the_same_again() -> None:
    found = parse_datasets({"0": dataset(at0=fields())}, unreadable := Unreadable())
    clients = [ServiceClient("0", (RateWindow(0, 1),), found["0"])]
    one, again, other = (
        drawn(clients, seed=seed, from_s=0, until_s=99, scale=1, unreadable=unreadable).rows for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_part_of_the_day_without_requests_is_no_fault() -> None:
    found = parse_datasets({"0": dataset(at0=fields(), at9=fields("{}", "{}"))}, unreadable := Unreadable())
    assert len(found["0"]) == 1
    assert unreadable.count == 0


def test_what_makes_no_sense_is_counted() -> None:
    texts = {"0": "{", "1": dataset(at0=fields("{1: x}")), "2": dataset(at0={"input_tokens": "{1: 1}"}, at1=fields())}
    found = parse_datasets(texts, unreadable := Unreadable())
    assert list(found) == ["2"]
    assert [reason.split(":")[0] for reason in unreadable.first] == [
        "client 0",
        "client 1, from 0 s",
        "client 2, from 0 s",
    ]
    assert unreadable.count == 3


def test_rate_windows_are_seconds_rate_and_variation() -> None:
    lines = ["start,rate,cv", "600,2.5,1.5,Gamma", "0,1", "x,1", "1200,-3", ""]
    assert parse_windows(lines, "0", unreadable := Unreadable()) == (RateWindow(0, 1), RateWindow(600, 2.5, 1.5))
    assert unreadable.count == 2


def test_rates_by_the_hour() -> None:
    rates = ",".join(str(hour) for hour in range(24))
    lines = [f"client,mean_rate,{HOURS}", f"0,9,{rates}", "1,9,1,2"]
    found = parse_hours_of_day(lines, unreadable := Unreadable())
    assert found["0"][13] == RateWindow(13 * 3600, 13)
    assert (list(found), unreadable.count) == (["0"], 1)
    with pytest.raises(RowFault, match="no column client"):
        parse_hours_of_day([HOURS], unreadable)
