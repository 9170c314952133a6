"""Builds histories of decode workers: one that a gateway wrote, or one derived from a recorded load.

It reads, and assumes no more than it reports.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_intdigest

from gateway.core.features.disaggregated.predictors.arrays import LENGTHS_MAX, TOKENS_MAX
from gateway.core.features.disaggregated.predictors.estimator import KEY_MAX, UNKNOWN_PROMPT
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.features.disaggregated.files import read_history
from loadgen.passages import BlockText
from loadgen.traces.files import TraceError
from loadgen.traces.rows import Trace
from mesh.state_files import StateUnusable

_SECOND_NS = 1_000_000_000
TOKEN_S = 0.03
"""Seconds per token for traces that record only the start of a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a load, before the requests that ran beside it are known."""

    at_s: float
    prompt_key: int
    prompt_tokens: int
    output_tokens: int


def history_from(path: Path) -> Snapshot:
    """Read a gateway's history. Raises StateUnusable, also for a missing file."""
    snapshot = read_history(path)
    if snapshot is None:
        raise StateUnusable(f"{path}: there is no such file")
    return snapshot


def history_of_trace(trace: Trace, *, token_s: float = TOKEN_S, requests_max: int = LENGTHS_MAX) -> Snapshot:
    """Build a history as if each request had been admitted at its arrival and took `token_s` per token, so the order of
    ends and admissions is assumed. Only the first `requests_max` requests by time are used. Raises TraceError."""
    by_time = sorted(trace.rows, key=lambda row: row.at_s)[:requests_max]
    requests = [
        Request(row.at_s, passage_key(row.passage), min(row.passage.tokens, TOKENS_MAX), row.output_tokens)
        for row in by_time
    ]
    if not any(request.output_tokens for request in requests):
        raise TraceError("no request of the trace generated anything")
    return history_of(requests, token_s=token_s)


def history_of(requests: Iterable[Request], *, token_s: float = TOKEN_S) -> Snapshot:
    """Ended requests in their order of ending; those that end at the same time are in order of arrival."""
    running: list[tuple[float, int, Request, int]] = []
    ended: list[Ended] = []

    def end_until(at_s: float) -> None:
        while running and running[0][0] <= at_s:
            end_s, _, request, after = heapq.heappop(running)
            ended.append(_ended(request, after, end_s))

    for number, request in enumerate(requests):
        end_until(request.at_s)
        end_s = request.at_s + request.output_tokens * token_s
        heapq.heappush(running, (end_s, number, request, len(ended)))
    end_until(float("inf"))
    return Snapshot(tuple(ended), len(ended))


def _ended(request: Request, after: int, end_s: float) -> Ended:
    output_tokens = min(request.output_tokens, TOKENS_MAX)
    return Ended(request.prompt_key, request.prompt_tokens, output_tokens, after, round(end_s * _SECOND_NS))


def passage_key(passage: BlockText) -> int:
    """Key of a prompt that is known by its blocks; UNKNOWN_PROMPT for one with text of its own at its end."""
    if not passage.runs or (passage.own and passage.blocks * passage.block_tokens < passage.tokens):
        return UNKNOWN_PROMPT
    named = f"{passage.space}/{passage.runs}/{passage.tokens}"
    return (xxh3_64_intdigest(named.encode()) & KEY_MAX) or 1
