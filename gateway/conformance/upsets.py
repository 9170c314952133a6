"""Events of optional features that a placement policy has to withstand at any time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gateway.core.events import Event
from gateway.core.features.prices.upset import change_of_prices
from gateway.core.vocabulary import RegionName

UPSETS: Sequence[Callable[[random.Random, Sequence[RegionName]], Event]] = [
    change_of_prices,
]
"""Each makes an event about some of the regions."""
