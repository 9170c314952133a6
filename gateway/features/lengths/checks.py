"""Checks of the settings by which a request's length is estimated and pools are chosen."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.config import CoreConfig
from mesh.faults import FileFault


def length_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults of settings that decisions depend on."""
    budget, threshold = core.token_budget, core.threshold
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("token_budget.ratio_start", budget.ratio_start, 1, 8),
        ("token_budget.decay", budget.decay, 0.5, 0.999),
        ("token_budget.caution", budget.caution, 0, 10),
        ("token_budget.output_share", budget.output_share, 0.01, 0.999),
        ("token_budget.output_start_tokens", budget.output_start_tokens, 1, 1 << 20),
        ("token_budget.tenants_max", budget.tenants_max, 1, 50_000),
        ("threshold.tokens_min", threshold.tokens_min, 16, 1 << 24),
        ("threshold.requests_min", threshold.requests_min, 10, 1_000_000),
        ("threshold.trouble_share", threshold.trouble_share, 0.0001, 0.5),
        ("threshold.late_share", threshold.late_share, 0.0001, 0.9),
        ("threshold.tighten", threshold.tighten, 0.1, 0.99),
        ("threshold.relax", threshold.relax, 1.01, 4),
    )
    for key, number, least, most in bounds:
        if not least <= number <= most:
            yield FileFault(key, f"{number}: it is {least:,} to {most:,}")
