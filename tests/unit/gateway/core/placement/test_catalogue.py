from __future__ import annotations

import pytest

from gateway.core.config import (
    CoreConfig,
    PlacementConfig,
    PlacementPolicy,
)
from gateway.core.placement.catalogue import BUILT_IN
from tests.support.core import EU, desk, peer_spec, started


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_every_policy_overflows_to_a_peer(policy: PlacementPolicy) -> None:
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU)], config=CoreConfig(placement=PlacementConfig(policy=policy)))
    one.probe(waiting=1)
    one.hear("gw-eu", EU)
    assert started(one.ask("q")) == ["gw-eu"]


def test_every_name_stands_for_a_policy_of_its_own() -> None:
    assert list(BUILT_IN) == list(PlacementPolicy)
    assert len(set(BUILT_IN.values())) == len(BUILT_IN)
