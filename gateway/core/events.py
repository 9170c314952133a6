"""Every event of a gateway core: the kernel's, and those of each feature. A journal holds these."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.config import CoreConfig
from gateway.core.features.cache_digests.events import DigestHeard
from gateway.core.features.disaggregated.events import DecodeHistoryRestored, PredictorFitted
from gateway.core.features.expert_locality.events import ArtifactReady
from gateway.core.features.kv_events.events import EngineTold, EngineUnheard
from gateway.core.features.leaving.events import ReplicaLeaves
from gateway.core.features.lengths.events import TokenBudgetRestored, TokenBudgetSnapshot
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.features.prices.events import PricesChanged
from gateway.core.kernel.events import (
    AssignmentApplied,
    DrainLifted,
    DrainRequested,
    FirstToken,
    ForwardArrived,
    LegAccepted,
    LegEnded,
    LegProgress,
    PeersObserved,
    PolicyApplied,
    ProgressSampled,
    ReplicasObserved,
    RequestAbandoned,
    RequestArrived,
    ResponseStored,
    TargetLost,
    TimePassed,
    TokensSettled,
    TooLong,
)

__all__ = [
    "ArtifactReady",
    "AssignmentApplied",
    "ConfigApplied",
    "DecodeHistoryRestored",
    "DigestHeard",
    "DrainLifted",
    "DrainRequested",
    "EngineTold",
    "EngineUnheard",
    "Event",
    "FirstToken",
    "ForwardArrived",
    "LegAccepted",
    "LegEnded",
    "LegProgress",
    "LockdownChanged",
    "PeersObserved",
    "PolicyApplied",
    "PredictorFitted",
    "PricesChanged",
    "ProgressSampled",
    "ReplicaLeaves",
    "ReplicasObserved",
    "RequestAbandoned",
    "RequestArrived",
    "ResponseStored",
    "TargetLost",
    "TimePassed",
    "TokenBudgetRestored",
    "TokenBudgetSnapshot",
    "TokensSettled",
    "TooLong",
]


class ConfigApplied(Struct, frozen=True):
    """Placement, pushing, limits and settings of features change; waiting requests are decided again at once."""

    config: CoreConfig


Event = (
    ConfigApplied
    | PolicyApplied
    | AssignmentApplied
    | DrainRequested
    | DrainLifted
    | ReplicasObserved
    | PeersObserved
    | TargetLost
    | RequestArrived
    | ForwardArrived
    | RequestAbandoned
    | LegAccepted
    | FirstToken
    | LegEnded
    | TimePassed
    | LockdownChanged
    | ResponseStored
    | ProgressSampled
    | DecodeHistoryRestored
    | PredictorFitted
    | ArtifactReady
    | TokenBudgetRestored
    | PricesChanged
    | TokensSettled
    | DigestHeard
    | EngineTold
    | EngineUnheard
    | ReplicaLeaves
)
