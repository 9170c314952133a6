"""A core under one placement policy, and the reasons of its placements."""

from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import ExploreRule, PlacementConfig, PlacementPolicy, PushingConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import Decision, PlacementReason
from tests.support.core import Desk, desk


def desk_with(policy: PlacementPolicy, replicas: int = 4, rule: ExploreRule = ExploreRule.WORTH) -> Desk:
    placement = PlacementConfig(policy=policy, explore_rule=rule)
    return desk(replicas=replicas, config=CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None)))


def records(one: Desk) -> list[Decision]:
    """Records of all placements."""
    return [effect.decision for effect in one.effects if isinstance(effect, StartLeg)]


def decisions(one: Desk) -> list[PlacementReason]:
    return [each.reason for each in records(one)]
