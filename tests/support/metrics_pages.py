"""Reads a metrics page as Prometheus would."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families


def sums_by_name(page: str) -> dict[str, float]:
    """Sum over all series of each name."""
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return dict(sums)
