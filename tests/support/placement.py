"""A core under one placement policy, and the reasons of its placements."""

from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import ExploreRule, PlacementConfig, PlacementPolicy, PushingConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import Decision, PlacementReason
from tests.support.core import MS, Desk, desk


def desk_with(policy: PlacementPolicy, replicas: int = 4, rule: ExploreRule = ExploreRule.WORTH) -> Desk:
    placement = PlacementConfig(policy=policy, explore_rule=rule)
    return desk(replicas=replicas, config=CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None)))


def desk_with_one_held() -> Desk:
    """One replica, which prefills `first`; the request `held` is held for it."""
    one = desk_with(PlacementPolicy.COST, replicas=1)
    for name in ("before", "and before"):
        one.ask(name)
        one.wait(40 * MS)
        one.first_token(name)
        one.finish(name)
    one.ask("first", prompt="a" * 9000)
    one.ask("held", prompt="b" * 9000)
    return one


def records(one: Desk) -> list[Decision]:
    """Records of all placements."""
    return [effect.decision for effect in one.effects if isinstance(effect, StartLeg)]


def decisions(one: Desk) -> list[PlacementReason]:
    return [each.reason for each in records(one)]
