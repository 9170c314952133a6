"""Changes of prices at random, for a test of placement policies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.core.features.prices.events import PricesChanged
from gateway.core.features.prices.price_table import EgressPrice, Prices, ReplicaPrice
from gateway.core.vocabulary import PoolName, RegionName

_ANY_POOL = PoolName("")
_ANYWHERE = RegionName("")
_REQUESTS_AT_ONCE = 16


def change_of_prices(rng: random.Random, regions: Sequence[RegionName]) -> PricesChanged:
    """Make another price list, which may not know all regions, or none."""
    named = rng.sample(list(regions), rng.randrange(len(regions) + 1))
    hours = [(region, rng.randrange(9_000_000), rng.random() < 0.5) for region in named]
    replicas = tuple(
        ReplicaPrice(region, _ANY_POOL, hour, per_use, _REQUESTS_AT_ONCE) for region, hour, per_use in hours
    )
    egress = tuple(EgressPrice(region, _ANYWHERE, hour) for region, hour, _ in hours)
    return PricesChanged(Prices("EUR", "conformance", replicas, egress) if replicas else None)
