"""Built-in placement policies by their config name. Those of features and plug-ins are not listed here."""

from __future__ import annotations

from gateway.core.kernel.config import PlacementPolicy
from gateway.core.placement.affinity_load import AffinityLoad
from gateway.core.placement.cache_aware import CacheAware
from gateway.core.placement.consistent_hash import ConsistentHash
from gateway.core.placement.cost import CostPolicy
from gateway.core.placement.least_load import LeastLoad
from gateway.core.placement.lmetric import LMetric
from gateway.core.placement.nearest_region import NearestRegion
from gateway.core.placement.policy import Policy
from gateway.core.placement.power_of_two import PowerOfTwo
from gateway.core.placement.prefix import Prefix
from gateway.core.placement.random_choice import RandomChoice
from gateway.core.placement.round_robin import RoundRobin
from gateway.core.placement.session_sticky import SessionSticky

BUILT_IN: dict[str, type[Policy]] = {
    PlacementPolicy.COST: CostPolicy,
    PlacementPolicy.PREFIX: Prefix,
    PlacementPolicy.CONSISTENT_HASH: ConsistentHash,
    PlacementPolicy.ROUND_ROBIN: RoundRobin,
    PlacementPolicy.LEAST_LOAD: LeastLoad,
    PlacementPolicy.RANDOM: RandomChoice,
    PlacementPolicy.POWER_OF_TWO: PowerOfTwo,
    PlacementPolicy.CACHE_AWARE: CacheAware,
    PlacementPolicy.NEAREST_REGION: NearestRegion,
    PlacementPolicy.LMETRIC: LMetric,
    PlacementPolicy.AFFINITY_LOAD: AffinityLoad,
    PlacementPolicy.SESSION_STICKY: SessionSticky,
}
