"""A flood of one tenant beside others: its effect on them is bounded, and the check fails where no sharing
bounds it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.simulator.checkers import Broken
from loadgen.simulator.neighbours import (
    MOVED_MAX_SHARE,
    MOVED_MAX_SHARE_WITH_ROOM,
    Neighbour,
    check_neighbours,
    neighbours_of,
)
from loadgen.studies.sharing.noisy_neighbour import FLOODER, WITH_ROOM, Floods, played

SECONDS = 40


def test_a_flood_moves_others_by_no_more_than_is_stated_and_by_much_more_where_nothing_is_shared() -> None:
    floods = Floods(1, SECONDS)
    found = floods.neighbours()
    assert [each.tenant for each in found] == ["acme", "zeta"]
    check_neighbours(found)
    for each in found:
        assert each.first_come_s > 4 * each.quiet_s, "it is a flood"
    unshared = [replace(each, fair_s=each.first_come_s) for each in found]
    with pytest.raises(Broken, match="of what a flood does"):
        check_neighbours(unshared)
    check_neighbours(floods.neighbours(run=WITH_ROOM), at_most=MOVED_MAX_SHARE_WITH_ROOM)
    with pytest.raises(Broken, match="no more than 15% is left"):
        check_neighbours(found, at_most=MOVED_MAX_SHARE_WITH_ROOM)


def test_what_is_lost_beside_a_flood_is_seen() -> None:
    one = Neighbour("acme", quiet_s=1.0, fair_s=1.1, first_come_s=9.0, lost=1)
    assert one.moved_share < MOVED_MAX_SHARE
    with pytest.raises(Broken, match="1 lost"):
        check_neighbours([one])


def test_who_floods_is_no_neighbour() -> None:
    records = played(1, 10, "best_effort")
    assert {each.tenant for each in records} == {"acme", FLOODER, "zeta"}
    found = neighbours_of(FLOODER, quiet=records, fair=records, first_come=records)
    assert [each.tenant for each in found] == ["acme", "zeta"]
    assert [each.moved_share for each in found] == [0.0, 0.0]
