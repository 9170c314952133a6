from __future__ import annotations

from collections import Counter

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from tests.support.core import AP, EU, desk, peer_spec, started


def nearest_region(outstanding_max: int = 2) -> CoreConfig:
    return CoreConfig(
        placement=PlacementConfig(policy=PlacementPolicy.NEAREST_REGION),
        pushing=PushingConfig(mode=PushingMode.OUTSTANDING, outstanding_max=outstanding_max),
    )


def test_the_own_region_fills_up_then_the_nearest_then_the_next() -> None:
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)], config=nearest_region())
    one.hear("gw-eu", EU, rtt_ms=80)
    one.hear("gw-ap", AP, rtt_ms=150)
    assert [started(one.ask(f"q{i}"))[0] for i in range(4)] == ["r0", "r0", "gw-eu", "gw-ap"]


def test_with_everybody_full_nobody_waits() -> None:
    one = desk(replicas=2, peers=[peer_spec("gw-eu", EU)], config=nearest_region(outstanding_max=1))
    one.hear("gw-eu", EU, available=0)
    assert Counter(started(one.ask(f"q{i}"))[0] for i in range(6)) == {"r0": 3, "r1": 3}


def test_full_is_not_broken() -> None:
    one = desk(replicas=1, config=nearest_region(outstanding_max=1))
    one.ask("q0")
    one.probe(healthy=False)
    assert started(one.ask("q1")) == []
