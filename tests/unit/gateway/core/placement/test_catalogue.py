from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.core.config import CoreConfig
from gateway.core.features.prices.policy import Price
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.placement.catalogue import BUILT_IN
from tests.support.core import EU, MS, desk, peer_spec, started

DESCRIPTION = Path(__file__).parents[5] / "docs/reference/openapi.yaml"


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_every_policy_overflows_to_a_peer(policy: PlacementPolicy) -> None:
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU)], config=CoreConfig(placement=PlacementConfig(policy=policy)))
    one.probe(running=200, waiting=1)
    one.hear("gw-eu", EU)
    assert started(one.ask("q")) == ["gw-eu"]


def test_every_name_stands_for_a_policy_of_its_own() -> None:
    assert {*BUILT_IN, PlacementPolicy.PRICE} == set(PlacementPolicy)
    assert len({*BUILT_IN.values(), Price}) == len(PlacementPolicy)


def targets_of_sessions(policy: PlacementPolicy, *sessions: str) -> list[str]:
    """Target of each session's request; all have the same prompt, and no replica is busy."""
    one = desk(replicas=8, config=CoreConfig(placement=PlacementConfig(policy=policy)))
    targets = []
    for number, session in enumerate(sessions):
        targets += started(one.ask(f"q{number}", session=session))
        one.finish(f"q{number}")
        one.wait(1 * MS)
        one.probe()
    return targets


def test_what_the_description_says_of_sessions_is_true_of_every_policy() -> None:
    """The API description names exactly the policies that look at the header."""
    document = yaml.safe_load(DESCRIPTION.read_text())
    described = document["components"]["parameters"]["SessionId"]["description"]
    sessions = [f"session-{number}" for number in range(8)]
    following = [
        policy
        for policy in PlacementPolicy
        if targets_of_sessions(policy, *sessions) != targets_of_sessions(policy, *["one"] * len(sessions))
    ]
    assert following == [PlacementPolicy.CONSISTENT_HASH, PlacementPolicy.SESSION_STICKY]
    assert [policy for policy in PlacementPolicy if f"`{policy}`" in described] == following
    assert "The others, and so the default one" in described
    assert PlacementConfig().policy not in following
