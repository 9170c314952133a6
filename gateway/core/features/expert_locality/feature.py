"""Expert locality: adds the decode policies that go by experts, and tells pools of the artifact in force."""

from __future__ import annotations

from gateway.core.features.disaggregated.feature import DecodePolicySource, decode_pools_of
from gateway.core.features.disaggregated.policy import DecodePolicies
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.features.expert_locality.events import ArtifactReady
from gateway.core.kernel.events import FeatureEvent
from gateway.core.kernel.kernel import Kernel


class ExpertLocality(DecodePolicySource):
    """Takes in locality artifacts. Pools, which the feature of disaggregated pools has, do the rest."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def decode_policies(self) -> DecodePolicies:
        return BY_EXPERTS

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        if not isinstance(event, ArtifactReady):
            return False
        decode_pools_of(self._core).take_artifact(event.pool, event.digest, event.clusters, now_ns)
        return True
