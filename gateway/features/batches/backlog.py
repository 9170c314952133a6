"""Backlog of a gateway's batches, played forward: which share of the places a further batch would have, and when. It
reads no clock and does no I/O.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct

from gateway.features.batches.outlook import PlaceShare
from gateway.features.batches.state import ClientBatch, next_to_run

_TINY = 1e-9


class BatchWork(Struct, frozen=True):
    """Batch before the further one, and what is left of it."""

    batch: ClientBatch
    is_running: bool
    work_s: float | None
    """Seconds that its lines would take one after another; None: not known, so that it lasts until its window ends."""
    lines_max: float = inf
    """Lines of it that engines have room for at once, were it the only batch."""


def place_shares(
    fresh: ClientBatch, works: list[BatchWork], *, lines_at_once: int, batches_max: int, tenant_max: int, now_s: int
) -> list[PlaceShare]:
    """Shares of the places that a further batch would have if it never ended. Batches begin in the runner's order, and
    those that run have equal shares; each leaves when its lines are done, or when its window ends."""
    left_s = {each.batch.id: inf if each.work_s is None else each.work_s for each in works}
    lines_max = {each.batch.id: each.lines_max for each in works}
    running = [each.batch for each in works if each.is_running]
    waiting = [each.batch for each in works if not each.is_running] + [fresh]
    shares: list[PlaceShare] = []
    at_s = 0.0
    while True:
        while (chosen := next_to_run(waiting, running, batches_max, tenant_max)) is not None:
            waiting.remove(chosen)
            running.append(chosen)
        share = 1 / len(running) if fresh in running else 0.0
        if not shares or shares[-1].share != share:
            shares.append(PlaceShare(at_s, share))
        others = [each for each in running if each is not fresh]
        if not others:
            return shares
        lines = {each.id: max(_TINY, min(lines_at_once, lines_max[each.id]) / len(running)) for each in others}
        ends_s = {each.id: min(left_s[each.id] / lines[each.id], each.expires_s - now_s - at_s) for each in others}
        step_s = max(0.0, min(ends_s.values()))
        for each in others:
            left_s[each.id] -= step_s * lines[each.id]
        at_s += step_s
        running = [each for each in running if each is fresh or ends_s[each.id] > step_s]
        waiting = [each for each in waiting if each is fresh or each.expires_s - now_s > at_s]
