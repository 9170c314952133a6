"""Leases as tests want them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass
class Leading:
    """For as long as it is left alone."""

    token: int = 1
    left: float = inf

    def left_s(self) -> float:
        return self.left
