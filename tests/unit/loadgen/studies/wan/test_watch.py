"""Times at which a fault was noticed and its effects were over, by what the processes say of themselves."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.studies.wan.watch import MeshSeen, first_seen, is_home, is_whole, longest, losses_after

SECOND = 1_000_000_000
US, EU = RegionName("us-east-1"), RegionName("eu-west-1")
HOME = {GatewayId("gw-us"): frozenset({"us-0"}), GatewayId("gw-eu"): frozenset({"eu-0"})}
NOBODY: frozenset[RegionName] = frozenset()
WHOLE = MeshSeen(0, {US: NOBODY, EU: NOBODY}, HOME, NOBODY, frozenset({US, EU}))
LOST = replace(WHOLE, lost={US: frozenset({EU}), EU: NOBODY})


def test_a_loss_counts_from_the_begin_of_the_fault_and_once() -> None:
    seen = [replace(LOST, at_ns=1 * SECOND), *(replace(LOST, at_ns=at * SECOND) for at in (4, 5)), WHOLE]
    assert losses_after(seen, 2 * SECOND, 9 * SECOND) == {(US, EU): 2.0}
    assert losses_after(seen, 2 * SECOND, 4 * SECOND) == {}
    assert first_seen(seen, 2 * SECOND, lambda each: bool(each.lost[US])) == 2.0
    assert first_seen(seen, 6 * SECOND, lambda each: bool(each.lost[US])) is None


def test_the_longest_time_counts_from_a_moment_on_and_without_gaps() -> None:
    both = frozenset({US, EU})
    seen = [replace(WHOLE, at_ns=at * SECOND, leaders=both if at in {1, 2, 3, 5, 6} else NOBODY) for at in range(8)]
    assert longest(seen, 0, lambda each: len(each.leaders) > 1) == 2.0
    assert longest(seen, 3 * SECOND, lambda each: len(each.leaders) > 1) == 1.0
    assert longest(seen, 7 * SECOND, lambda each: len(each.leaders) > 1) == 0.0


def test_a_mesh_is_whole_only_when_everything_is_as_before() -> None:
    assert is_whole(WHOLE, HOME)
    assert not is_whole(LOST, HOME)
    assert not is_whole(replace(WHOLE, attached=NOBODY), HOME)
    assert not is_whole(replace(WHOLE, attached=frozenset({EU})), HOME)
    assert not is_whole(replace(WHOLE, lost={US: NOBODY}), HOME), "a gateway does not answer"
    moved = {**HOME, GatewayId("gw-us"): frozenset({"us-0", "eu-0"})}
    assert not is_whole(replace(WHOLE, replicas=moved), HOME)


def test_a_mesh_is_at_home_only_where_every_gateway_serves_and_none_is_lost() -> None:
    assert is_home(WHOLE, HOME)
    assert not is_home(LOST, HOME)
    assert not is_home(WHOLE, [*HOME, GatewayId("gw-ap")])
    assert not is_home(replace(WHOLE, replicas={**HOME, GatewayId("gw-us"): frozenset()}), HOME)
