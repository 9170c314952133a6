"""Units of a file's keys, for their reference: by type, and for plain numbers by name."""

from __future__ import annotations

import re

PURE_NUMBER = "1"
"""Unit of a number without a dimension, such as a weight or a factor."""
_BY_TYPE = {"duration": "time", "size": "bytes"}
_BY_NAME: tuple[tuple[str, str], ...] = (
    (r".*_share|confidence_min", "fraction"),
    (r"(tokens|requests)_per_(minute|day|month)", r"\1/\2"),
    (r"answers_per_s", "answers/s"),
    (r"adopted_per_s", "probes/s"),
    (r"(requests|kept)_per_s", "requests/s"),
    (r"ttl_s", "s"),
    (r"ratio_start", "bytes/token"),
    (r".*tokens.*", "tokens"),
    (r"(latitude|longitude)", "degrees"),
    (r"(.*_)?port", "port"),
    (r"price(_of_second)?", "currency"),
    (r"horizon_steps", "steps"),
    (r"replicas(_min|_max)?|adopted_max", "replicas"),
    (r"considered_max", "targets"),
    (r"tenant_(batches|files)_max", r"\1"),
    (r"tenant_unfinished_max", "batches"),
    (r"told_max", "tenants"),
    (r"further_gateways", "gateways"),
    (r"header_count_max", "headers"),
    (r"running_max", "recoveries"),
    (r"retry_budget_min", "retries"),
    (r"admissions_max|cache_aware_spread_max|window|batch_max", "requests"),
    (r"in_band_credit|outstanding_max|ramp_limit|breaker_(window|failures_in_row)", "legs"),
    (r"(.*_)?length(_max)?|(queue|history|requests|concurrency|decode_batch)_(max|min)", "requests"),
    (r"concurrency|slots|.*_margin|stored_responses_max", "requests"),
    (r"greedy_above_slots", "slots"),
    (r"rtt_window", "round trips"),
    (r"ring_virtual_nodes", "points"),
    (r"data_parallel_ranks", "ranks"),
    (r"(probe_)?failures(_min)?", "probes"),
    (r"subjects_per_tenant_max", "subjects"),
    (r"prompt_blocks_max", "blocks"),
    (r"([a-z]+)_max", r"\1"),
    (r".*", PURE_NUMBER),
)


def unit_of(name: str, type_name: str) -> str:
    """Return the unit of a key's values, or of the values in its list; empty for values that are no amounts."""
    if type_name == "size" and "_rate_" in f"{name}_":
        return "bytes/s"
    if type_name in _BY_TYPE:
        return _BY_TYPE[type_name]
    if type_name not in ("integer", "number"):
        return ""
    match, unit = next((match, unit) for pattern, unit in _BY_NAME if (match := re.fullmatch(pattern, name)))
    return match.expand(unit)
