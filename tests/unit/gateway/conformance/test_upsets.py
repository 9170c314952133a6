from __future__ import annotations

import random

from gateway.conformance.upsets import UPSETS
from gateway.core.vocabulary import RegionName


def test_the_same_seed_upsets_alike() -> None:
    regions = [RegionName("a"), RegionName("b")]
    first, second = (
        [[upset(rng, regions) for upset in UPSETS] for _ in range(20)] for rng in map(random.Random, (1, 1))
    )
    assert first == second
    assert len({str(each) for each in first}) > 5
