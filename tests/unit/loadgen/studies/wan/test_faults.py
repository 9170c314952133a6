"""The faults change the links that they say, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.demo.scenario import ROUND_TRIPS_FILE
from loadgen.hosts.shapes import Direction
from loadgen.round_trips import read_round_trips
from loadgen.studies.wan.faults import (
    ACROSS,
    AP,
    DATABASE,
    EU,
    FAULTS,
    REGIONS,
    US,
    WanFault,
    base_links,
    clients_of,
    sites,
)

SOUND = base_links(read_round_trips(ROUND_TRIPS_FILE))
BY_NAME = {each.name: each for each in FAULTS}


def changed(fault: WanFault) -> set[Direction]:
    shaped = fault.shaped(SOUND)
    assert shaped.keys() == SOUND.keys()
    return {way for way, shape in shaped.items() if shape != SOUND[way]}


def test_sound_links_have_half_of_the_round_trip_and_clients_are_near_their_region() -> None:
    assert SOUND[US, EU].delay_ms == SOUND[EU, US].delay_ms == 35.0
    assert SOUND[clients_of(AP), AP].delay_ms == 2.0
    assert SOUND[clients_of(AP), US].delay_ms == 76.5
    assert (clients_of(AP), clients_of(US)) not in SOUND
    assert (clients_of(EU), DATABASE) not in SOUND
    assert (SOUND[DATABASE, EU].delay_ms, SOUND[DATABASE, US].delay_ms) == (2.0, 37.0)
    assert len(set(sites().values())) == 2 * len(REGIONS) + 1


def test_a_partition_cuts_the_region_and_its_clients_off_from_all_others_and_from_no_other() -> None:
    cut = changed(BY_NAME["partition"])
    assert {(AP, US), (US, AP), (AP, EU), (EU, AP), (clients_of(AP), US), (US, clients_of(AP))} <= cut
    assert {(AP, clients_of(AP)), (clients_of(AP), AP), (US, EU)}.isdisjoint(cut)


def test_one_way_partitions_are_the_two_halves_of_one() -> None:
    out, into = changed(BY_NAME["one-way partition, out"]), changed(BY_NAME["one-way partition, in"])
    assert out.isdisjoint(into)
    assert out | into == changed(BY_NAME["partition"])
    assert (AP, US) in out
    assert (US, AP) in into


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("5 % loss", "loss", 0.05),
        ("20 % loss", "loss", 0.2),
        ("10 × latency", "delay_ms", 350.0),
        ("bandwidth collapse", "rate_kbit_s", 64.0),
    ],
)
def test_bad_links_are_those_between_regions(name: str, field: str, value: Any) -> None:
    fault = BY_NAME[name]
    assert changed(fault) == set(ACROSS)
    assert getattr(fault.shaped(SOUND)[US, EU], field) == value


def test_a_frozen_host_is_reached_by_no_packet_and_its_clients_reach_the_others() -> None:
    cut = changed(BY_NAME["frozen host"])
    assert cut == {way for way in SOUND if AP in way}
    assert (clients_of(AP), US) not in cut


def test_forgotten_connections_change_no_shape() -> None:
    fault = BY_NAME["connections forgotten"]
    assert changed(fault) == set()
    assert set(fault.forgets) == changed(BY_NAME["partition"])


def test_a_fault_strikes_the_region_of_the_host_that_it_stops_and_otherwise_the_last() -> None:
    assert BY_NAME["frozen host of the controller"].struck == US
    assert BY_NAME["frozen host of the database"].struck == EU
    assert BY_NAME["clock ahead"].struck == BY_NAME["partition"].struck == AP
    cutting = {each.name for each in FAULTS if each.cuts_answers}
    assert cutting == {"frozen host", "frozen host of the controller", "killed gateway"}


def test_every_fault_does_something_and_says_what_is_expected() -> None:
    assert len(BY_NAME) == len(FAULTS) > 9
    for each in FAULTS:
        assert bool(changed(each) or each.forgets) == each.changes_links
        assert each.changes_links or each.clock_s or each.names or each.kills or each.moves
        assert all((each.begins, each.heals, each.expected))
        assert all(observer != peer for observer, peer in each.loses)
