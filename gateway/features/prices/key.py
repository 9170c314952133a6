"""Key of the region file that names the prices file. It is imported wherever the region file is read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

PricesPath: TypeAlias = Path | None
"""Prices file: costs of replicas and egress by time of day. None: only the controller's prices, if it sends any."""
