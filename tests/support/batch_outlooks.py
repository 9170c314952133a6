"""Outlooks for batches in tests."""

from __future__ import annotations

from typing import Any

from gateway.features.batches.outlook import BatchOutlook, PlaceShare


def outlook_of(**changes: Any) -> BatchOutlook:
    """Outlook of an idle gateway for a client without limits."""
    told: dict[str, Any] = {
        "region": "here",
        "file_bytes_max": 10**9,
        "lines_max": 50_000,
        "line_bytes_max": 10**6,
        "body_bytes_max": 10**6,
        "pass_priority": False,
        "output_tokens_reserved": 1_024,
        "lines_at_once": 32,
        "shares": [PlaceShare(0.0, 1.0, 1.0)],
        "waits_for_unknown": False,
    }
    return BatchOutlook(**(told | changes))
