"""Features that the core is built with. Whatever is not listed here is not there."""

from __future__ import annotations

from gateway.core.features.adoption import Adoption
from gateway.core.features.cache_digests.feature import CacheDigests
from gateway.core.features.classes.feature import Classes
from gateway.core.features.classes.interruptions import Interruptions
from gateway.core.features.disaggregated.feature import Disaggregated
from gateway.core.features.expert_locality.feature import ExpertLocality
from gateway.core.features.kv_events.feature import KvEvents
from gateway.core.features.leaving.feature import Leaving
from gateway.core.features.lengths.feature import PoolsByLength
from gateway.core.features.limits.feature import TenantLimits
from gateway.core.features.lockdown.feature import Lockdown
from gateway.core.features.prices.feature import PricesInForce
from gateway.core.features.resume.feature import Resume
from gateway.core.features.shadow import Shadow
from gateway.core.features.sharing.feature import Sharing
from gateway.core.features.stored_responses.feature import StoredResponses
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel


def features_of(core: Kernel) -> list[Feature]:
    """Make the optional features of a core, in the order in which their hooks are called."""
    return [
        PoolsByLength(core),
        Resume(core),
        TenantLimits(core),
        Sharing(core),
        Shadow(core),
        Disaggregated(core),
        ExpertLocality(core),  # cannot be without disaggregated pools
        StoredResponses(core),
        Lockdown(core),
        PricesInForce(core),
        Classes(core),  # later than Resume, whose word on how long the rest of an answer waits counts
        Interruptions(core),
        Adoption(core),
        CacheDigests(core),
        KvEvents(core),
        Leaving(core),
    ]
