"""The core without its optional features, and whose event is whose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.adoption import Adoption
from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.feature import CacheDigests
from gateway.core.features.catalogue import features_of
from gateway.core.features.classes.feature import Classes
from gateway.core.features.classes.interruptions import Interruptions
from gateway.core.features.disaggregated.feature import Disaggregated
from gateway.core.features.disaggregated.predictors.arrays import SurvivalArrays
from gateway.core.features.expert_locality.feature import ExpertLocality
from gateway.core.features.kv_events.events import UnheardReason
from gateway.core.features.kv_events.feature import KvEvents
from gateway.core.features.leaving.feature import Leaving
from gateway.core.features.lengths.feature import PoolsByLength
from gateway.core.features.limits.feature import TenantLimits
from gateway.core.features.lockdown.feature import Lockdown
from gateway.core.features.prices.feature import PricesInForce
from gateway.core.features.prices.price_table import Prices
from gateway.core.features.resume.feature import Resume
from gateway.core.features.shadow import Shadow
from gateway.core.features.sharing.feature import Sharing
from gateway.core.features.stored_responses.feature import StoredResponses
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Features, Kernel
from gateway.core.vocabulary import GatewayId, LegResult, PoolName, ReplicaId, RequestId
from tests.support.core import US, Desk, ended, policy, replica_spec, started
from tests.support.identifiers import identifiers_in

ROOT = Path(__file__).parents[5]
OWN: dict[type[Feature], list[events.Event]] = {
    PoolsByLength: [events.TokenBudgetRestored(events.TokenBudgetSnapshot())],
    Resume: [],
    TenantLimits: [events.TokensSettled(RequestId("a"), 1)],
    Sharing: [],
    Shadow: [],
    Disaggregated: [
        events.DecodeHistoryRestored(PoolName("pd"), (), 0, 1),
        events.PredictorFitted(PoolName("pd"), 0, SurvivalArrays((5,))),
        events.ProgressSampled(PoolName("pd"), ()),
    ],
    ExpertLocality: [events.ArtifactReady(PoolName("pd"), "", 0)],
    StoredResponses: [],
    Lockdown: [events.LockdownChanged(active=True, cut=False)],
    PricesInForce: [events.PricesChanged(Prices("EUR", "digest", ()))],
    Classes: [],
    Interruptions: [],
    Adoption: [],
    CacheDigests: [events.DigestHeard(GatewayId("gw-eu"), DigestPart(True, 0, 0))],
    KvEvents: [events.EngineTold(ReplicaId("r0"), ()), events.EngineUnheard(ReplicaId("r0"), UnheardReason.GAP)],
    Leaving: [events.ReplicaLeaves(ReplicaId("r0"), None)],
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
    events.ResponseStored,
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


def test_a_stored_response_is_nobody_s_concern_without_the_feature_that_follows_them() -> None:
    desk = desk_with(none_of)
    desk.ask("a")
    desk.tell(events.ResponseStored(RequestId("a"), 1, 1, "key"))
    assert ended(desk.finish("a")) == [("a", "completed")]


WORDS_OF_FEATURES = {
    "adoption": r"adopt|away",
    "cache_digests": r"cache_?digest|fingerprint",
    "classes": r"service_?class|ClassesConfig|^classes$|promot",
    "disaggregated": r"decod|disaggregated|retain|prefill_worker|is_sequential|tick_interval",
    "expert_locality": r"nearness|locality|seat|signature|artifact|eldr|expert",
    "kv_events": r"kv_?event|engine_?(told|unheard)",
    "leaving": r"leave_by|^leaving$|from_leaving|replica_?leaves",
    "lengths": r"ladder|token_?budget|estimate|misroute|tuning|refused_tokens|threshold",
    "limits": r"meter|limits|exceeded|quota",
    "lockdown": r"lock_?down|locked_down",
    "prices": r"prices?(_|$)|carbon|(?<!con)currency|money",
    "resume": r"resum|poison|first_step",
    "scaling": r"scal(e|ing)|replicas_wanted",
    "shadow": r"shadow",
    "sharing": r"shares|sharing|charge|account|fair",
    "stored_responses": r"stored_?response",
}
"""Words by which each feature would be named."""
CONFIG = "The section `placement` has keys that only the feature reads."
JUSTIFIED: dict[str, dict[tuple[str, ...], str]] = {
    "adoption": {
        ("away",): "An assignment, as the controller words it, names them; only the feature reads it.",
        ("turned_away",): "A target did that to a leg.",
    },
    "classes": {
        ("ServiceClass", "service_class"): (
            "A request names its class itself; queues are ordered by it, and those that yield need room to spare."
        ),
    },
    "disaggregated": {
        ("DECODE", "DECODE_FULL", "_decoding", "retained"): (
            "Each replica has a role, and whether one may be sent a prompt depends on it and on its pool."
        ),
    },
    "expert_locality": {
        ("Nearness", "nearness"): "The end of a prefill leg carries a plain value, which the kernel passes on.",
    },
    "leaving": {
        ("LEAVING", "leave_by_ns"): "Whether a replica may be sent a request depends on its announced end.",
        ("from_leaving",): "Legs are taken back from targets that leave as from those that are silent.",
    },
    "lengths": {
        ("threshold_tokens", "thresholds", "told_thresholds", "has_thresholds", "threshold_of"): (
            "Pools and heartbeats state the lengths that they are meant for; placement prefers pools by them."
        ),
    },
    "prices": {("PRICE", "price_first_token_ns", "price_first_token_share", "price_of_second"): CONFIG},
    "shadow": {
        ("SHADOW",): "A mode of overflow in the config.",
        ("RecordShadow", "shadow"): "The request's record has a place for what the feature found.",
    },
    "sharing": {
        ("SharingFigures", "sharing_of"): "Figures of the queues' order for the metrics page, whichever order it is.",
        ("is_charged",): "The end of a request tells the driver whether the feature wants to know its tokens.",
        ("is_fair", "_OF_NO_ACCOUNT"): "Words of breakers and of outcomes, and not of this feature.",
    },
    "stored_responses": {("stored_responses_max",): CONFIG},
}
"""Words that the kernel has all the same, with the reason. The list only becomes shorter."""
KERNEL = [ROOT / "gateway/core/gateway_core.py", *sorted((ROOT / "gateway/core/kernel").glob("*.py"))]


@pytest.mark.parametrize("feature", WORDS_OF_FEATURES)
def test_the_kernel_names_no_feature(feature: str) -> None:
    word = re.compile(WORDS_OF_FEATURES[feature], re.IGNORECASE)
    assert len(KERNEL) > 30
    named = {name for path in KERNEL for name in identifiers_in(path) if word.search(name)}
    assert named == {name for names in JUSTIFIED.get(feature, {}) for name in names}


def test_each_feature_has_its_words() -> None:
    folder = ROOT / "gateway/core/features"
    assert {path.stem for path in folder.glob("[!_]*") if path.stem != "catalogue"} == set(WORDS_OF_FEATURES)


@pytest.mark.parametrize("path", KERNEL, ids=lambda path: path.name)
def test_no_file_of_the_kernel_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500
