from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig
from tests.support.core import Desk, desk, started
from tests.support.placement import desk_with


def test_consistent_hashing_keeps_a_session_on_one_replica_and_walks_on_when_it_is_busy() -> None:
    one = desk_with(PlacementPolicy.CONSISTENT_HASH)
    homes = {started(one.ask(f"q{i}", session="user-1"))[0] for i in range(10)}
    assert len(homes) == 1
    one.probe(*homes, waiting=1)
    assert not homes & set(started(one.ask("elsewhere", session="user-1")))


def test_consistent_hashing_spreads_sessions() -> None:
    one = desk_with(PlacementPolicy.CONSISTENT_HASH)
    assert len({started(one.ask(f"q{i}", session=f"user-{i}"))[0] for i in range(40)}) == 4


def test_the_number_of_virtual_nodes_can_change_while_running() -> None:
    """Sessions are then placed as if the number had been the same from the start."""

    def config(virtual_nodes: int) -> CoreConfig:
        policy = PlacementConfig(policy=PlacementPolicy.CONSISTENT_HASH, ring_virtual_nodes=virtual_nodes)
        return CoreConfig(placement=policy, pushing=PushingConfig(in_band_credit=None))

    def homes(one: Desk) -> list[str]:
        return [started(one.ask(f"q{i}", session=f"user-{i}"))[0] for i in range(40)]

    first, changed = desk(replicas=4, config=config(3)), desk(replicas=4, config=config(160))
    changed.tell(ConfigApplied(config(3)))
    assert homes(changed) == homes(first)
