"""The core without its optional features, and with one at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.catalogue import features_of
from gateway.core.features.disaggregated import Disaggregated
from gateway.core.features.feature import Feature, Features, Kernel
from gateway.core.features.lockdown import Lockdown
from gateway.core.features.prices import PricesInForce
from gateway.core.gateway_core import GatewayCore
from gateway.core.prices import Prices
from gateway.core.vocabulary import GatewayId, LegResult, PoolName
from tests.support.core import US, Desk, ended, policy, replica_spec, started

EVENTS: dict[type[Feature], events.Event] = {
    Disaggregated: events.ArtifactReady(PoolName("pd"), "", 0),
    Lockdown: events.LockdownChanged(active=True, cut=False),
    PricesInForce: events.PricesChanged(Prices("EUR", "digest", ())),
}
"""Event that is a feature's own."""
MADE: list[Callable[[Kernel], Feature]] = [Disaggregated, Lockdown, PricesInForce]


def desk_with(features: Features) -> Desk:
    desk = Desk(GatewayCore(GatewayId("gw-us"), US, seed=1, features=features))
    desk.tell(events.ConfigApplied(CoreConfig()))
    desk.tell(events.PolicyApplied(policy(US)))
    desk.tell(events.AssignmentApplied(1, (replica_spec("r0", US), replica_spec("r1", US)), ()))
    desk.probe()
    return desk


def none_of(_: Kernel) -> list[Feature]:
    return []


def only(made: Callable[[Kernel], Feature]) -> Features:
    return lambda core: [made(core)]


def test_every_feature_has_an_event_here() -> None:
    made = features_of(GatewayCore(GatewayId("gw-us"), US, seed=1))
    assert [type(each) for each in made] == list(EVENTS)


@pytest.mark.parametrize("features", [none_of, *map(only, MADE)], ids=["none", *(each.__name__ for each in EVENTS)])
def test_the_core_serves_and_retries_requests_without_the_others(features: Features) -> None:
    desk = desk_with(features)
    (first,) = started(desk.ask("a"))
    effects = desk.finish("a", result=LegResult.FAILED)
    (second,) = started(effects)
    assert {first, second} == {"r0", "r1"}
    assert ended(desk.finish("a", attempt=2)) == [("a", "completed")]
    assert not desk.core.requests


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_of_a_feature_that_is_not_there_is_an_error_of_whoever_sent_it(kind: type[Feature]) -> None:
    desk_with(features_of).tell(EVENTS[kind])
    with pytest.raises(AssertionError, match="no feature takes in"):
        desk_with(none_of).tell(EVENTS[kind])
