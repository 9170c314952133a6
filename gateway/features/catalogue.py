"""Features that a gateway is built with. Whatever is not listed here is not there; a feature with a section of the
region file is listed in `sections`, too. Expert locality is of use only with disaggregated pools; no other feature
needs another.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.sections import GatewayConfig
from gateway.features.batches.extension import BatchesExtension
from gateway.features.cache_digests.extension import CacheDigestsExtension
from gateway.features.classes.extension import ClassesExtension
from gateway.features.disaggregated.extension import DisaggregatedExtension
from gateway.features.expert_locality.extension import ExpertLocalityExtension
from gateway.features.extension import Extension, Host
from gateway.features.kv_events.extension import KvEventsExtension
from gateway.features.leaving.extension import LeavingExtension
from gateway.features.lengths.extension import LengthsExtension
from gateway.features.limits.extension import LimitsExtension
from gateway.features.lockdown.extension import LockdownExtension
from gateway.features.prices.extension import PricesExtension
from gateway.features.resume.extension import ResumeExtension
from gateway.features.scaling.extension import ScalingExtension
from gateway.features.sharing.extension import SharingExtension
from gateway.features.stored_responses.extension import StoredResponsesExtension

KINDS: Sequence[type[Extension]] = [
    BatchesExtension,
    CacheDigestsExtension,
    ClassesExtension,
    DisaggregatedExtension,
    ExpertLocalityExtension,
    KvEventsExtension,
    LeavingExtension,
    LengthsExtension,
    LimitsExtension,
    LockdownExtension,
    PricesExtension,
    ResumeExtension,
    ScalingExtension,
    SharingExtension,
    StoredResponsesExtension,
]


def extensions_of(config: GatewayConfig, host: Host) -> list[Extension]:
    """Make the extensions of a gateway, in the order in which their hooks are called."""
    return [kind(config, host) for kind in KINDS]
