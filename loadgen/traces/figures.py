"""Counts the contents of a trace: requests, lengths, and the share of input that repeats. It only counts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from loadgen.passages import BlockText
from loadgen.traces.rows import Trace

_QUANTILES = {"p10": 0.10, "p50": 0.50, "p90": 0.90, "p99": 0.99}
_SEED = 0
_COMMON_BLOCKS_MAX = 32


def trace_figures(trace: Trace) -> dict[str, Any]:
    """Figures of a trace, JSON-able. Repeated input is counted in the leading blocks that an unbounded prefix cache
    would hold; the second share leaves out the blocks with which half of all inputs begin."""
    rows = trace.rows
    sessions = {row.session for row in rows}
    starts_s = [row.at_s for row in rows if row.after is None]
    repeated, unshared = _repeated_shares([row.passage for row in rows])
    return {
        "format": str(trace.format),
        "requests": len(rows),
        "unreadable": trace.unreadable.count,
        "first_unreadable": list(trace.unreadable.first),
        "sessions": len(sessions),
        "waiting_for_an_answer": sum(row.after is not None for row in rows),
        "span_s": round(max(row.at_s for row in rows) - min(row.at_s for row in rows), 3),
        "starts": len(starts_s),
        "input_tokens": _distribution([row.passage.tokens for row in rows]),
        "output_tokens": _distribution([row.output_tokens for row in rows]),
        "think_s": _distribution([row.think_s for row in rows if row.after is not None]),
        "repeated_input_share": repeated,
        "repeated_input_share_without_common_beginning": unshared,
        "regions": sorted({row.region for row in rows if row.region}),
        "tenants": sorted({row.tenant for row in rows if row.tenant}),
        "notes": list(trace.notes),
    }


def _repeated_shares(passages: Sequence[BlockText]) -> tuple[float, float]:
    """Share of all input tokens in blocks that occurred earlier after the same blocks; with and without common
    beginnings."""
    seen: set[int] = set()
    first_blocks: Counter[int] = Counter()
    repeats: list[tuple[int, int, list[int]]] = []
    for passage in passages:
        names = passage.block_names(_SEED)
        known = bisect_left(names, True, key=lambda name: name not in seen)
        seen.update(names[known:])
        first_blocks.update(names[:_COMMON_BLOCKS_MAX])
        repeats.append((known, passage.block_tokens, names[: min(known, _COMMON_BLOCKS_MAX)]))
    total = sum(passage.tokens for passage in passages)
    repeated = sum(known * size for known, size, _ in repeats)
    common = sum(sum(2 * first_blocks[name] > len(passages) for name in first) * size for _, size, first in repeats)
    return round(repeated / total, 4), round((repeated - common) / total, 4)


def _distribution(values: Iterable[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    if not ordered:
        return None
    ranks = {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in _QUANTILES.items()}
    return {**ranks, "max": ordered[-1], "mean": round(sum(ordered) / len(ordered), 2)}
