"""The core without its optional features, and whose event is whose."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from gateway.core import events
from gateway.core.features.catalogue import features_of
from gateway.core.features.disaggregated.feature import Disaggregated
from gateway.core.features.disaggregated.predictors.arrays import SurvivalArrays
from gateway.core.features.expert_locality.feature import ExpertLocality
from gateway.core.features.lengths.feature import PoolsByLength
from gateway.core.features.limits.feature import Limits
from gateway.core.features.lockdown.feature import Lockdown
from gateway.core.features.prices.feature import PricesInForce
from gateway.core.features.prices.price_table import Prices
from gateway.core.features.resume import Resume
from gateway.core.features.shadow import Shadow
from gateway.core.features.sharing.feature import Sharing
from gateway.core.features.stored_responses.feature import StoredResponses
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import CoreConfig
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Features, Kernel
from gateway.core.vocabulary import GatewayId, LegResult, PoolName, RequestId
from tests.support.core import US, Desk, ended, policy, replica_spec, started

ROOT = Path(__file__).parents[5]
OWN: dict[type[Feature], list[events.Event]] = {
    PoolsByLength: [events.TokenBudgetRestored(events.TokenBudgetSnapshot())],
    Resume: [],
    Limits: [events.TokensSettled(RequestId("a"), 1)],
    Sharing: [],
    Shadow: [],
    Disaggregated: [
        events.DecodeHistoryRestored(PoolName("pd"), (), 0, 1),
        events.PredictorFitted(PoolName("pd"), 0, SurvivalArrays((5,))),
        events.ProgressSampled(PoolName("pd"), ()),
    ],
    ExpertLocality: [events.ArtifactReady(PoolName("pd"), "", 0)],
    StoredResponses: [events.ResponseStored(RequestId("a"), 1, 1, "key")],
    Lockdown: [events.LockdownChanged(active=True, cut=False)],
    PricesInForce: [events.PricesChanged(Prices("EUR", "digest", ()))],
}
"""Events that are a feature's own."""
ALL_OWN = [each for own in OWN.values() for each in own]
THE_CORES = {
    events.ConfigApplied,
    events.PolicyApplied,
    events.AssignmentApplied,
    events.DrainRequested,
    events.DrainLifted,
    events.RequestArrived,
    events.ForwardArrived,
    events.RequestAbandoned,
    events.LegAccepted,
    events.FirstToken,
    events.LegEnded,
    events.ReplicasObserved,
    events.PeersObserved,
    events.TargetLost,
    events.TimePassed,
}
"""Events that the core takes in itself."""


def desk_with(features: Features) -> Desk:
    desk = Desk(GatewayCore(GatewayId("gw-us"), US, seed=1, features=features))
    desk.tell(events.ConfigApplied(CoreConfig()))
    desk.tell(events.PolicyApplied(policy(US)))
    desk.tell(events.AssignmentApplied(1, (replica_spec("r0", US), replica_spec("r1", US)), ()))
    desk.probe()
    return desk


def none_of(_: Kernel) -> list[Feature]:
    return []


def test_every_event_is_the_cores_or_one_features() -> None:
    features = {type(each) for each in ALL_OWN}
    assert not features & THE_CORES
    assert features | THE_CORES == set(get_args(events.Event))
    made = GatewayCore(GatewayId("gw-us"), US, seed=1).features
    assert [type(each) for each in made] == list(OWN)


def test_the_core_serves_and_retries_requests_without_any() -> None:
    desk = desk_with(none_of)
    (first,) = started(desk.ask("a"))
    (second,) = started(desk.finish("a", result=LegResult.FAILED))
    assert {first, second} == {"r0", "r1"}
    assert ended(desk.finish("a", attempt=2)) == [("a", "completed")]
    assert not desk.core.requests


@pytest.mark.parametrize("event", ALL_OWN, ids=lambda event: type(event).__name__)
def test_an_event_of_a_feature_that_is_not_there_is_an_error_of_whoever_sent_it(event: events.Event) -> None:
    desk_with(features_of).tell(event)
    with pytest.raises(AssertionError, match="no feature takes in"):
        desk_with(none_of).tell(event)


WORDS_OF_FEATURES = {
    "lengths": r"ladder|token_budget|estimate|misroute|tuning|refused_tokens",
    "resume": r"resum|poison|first_step",
    "limits": r"meter|limits|exceeded",
    "shadow": r"shadow",
    "stored_responses": r"stored_response|ResponseStored|StoredResponse",
    "sharing": r"shares|charge|account|fair",
    "prices": r"price|carbon|currency",
}
"""Words by which a feature would be named, for those whose core half is whole."""
BESIDE = {
    "sharing": [
        ROOT / "gateway/core/kernel" / name
        for name in (
            "admission.py",
            "description.py",
            "drains.py",
            "prospects.py",
            "queues.py",
            "requests.py",
            "state.py",
        )
    ]
}
"""Files beside the kernel that do without a feature's words too."""
KERNEL = [
    ROOT / "gateway/core/gateway_core.py",
    *(
        ROOT / f"gateway/core/kernel/{name}.py"
        for name in ("deadlines", "feature", "judging", "kernel", "legs", "placing", "retries")
    ),
]


@pytest.mark.parametrize("feature", WORDS_OF_FEATURES)
def test_the_kernel_names_no_feature(feature: str) -> None:
    word = re.compile(WORDS_OF_FEATURES[feature], re.IGNORECASE)
    assert len(KERNEL) > 7
    named = [
        (path.name, name) for path in KERNEL + BESIDE.get(feature, []) for name in names_in(path) if word.search(name)
    ]
    assert named == []


def names_in(path: Path) -> set[str]:
    """Identifiers of a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case _:
                pass  # has no name
    return names


@pytest.mark.parametrize("path", KERNEL, ids=lambda path: path.name)
def test_no_file_of_the_kernel_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500
