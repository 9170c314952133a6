"""Backlog of a gateway's batches, played forward: which shares a further batch would have, and when. It reads no clock
and does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    room: float = inf
    """Lines of its model that engines have room for at once, for all batches of the model."""


def place_shares(
    fresh: ClientBatch, works: Sequence[BatchWork], *, lines_at_once: int, batches_max: int, tenant_max: int, now_s: int
) -> list[PlaceShare]:
    """Shares that a further batch would have if it never ended. Batches begin in the runner's order; those that run
    have equal shares of the places, and those of one model equal shares of its room. Each leaves when its lines are
    done, or when its window ends."""
    left_s = {each.batch.id: inf if each.work_s is None else each.work_s for each in works}
    rooms = {each.batch.id: each.room for each in works}
    running = [each.batch for each in works if each.is_running]
    waiting = [each.batch for each in works if not each.is_running] + [fresh]
    shares: list[PlaceShare] = []
    at_s = 0.0
    while True:
        while (chosen := next_to_run(waiting, running, batches_max, tenant_max)) is not None:
            waiting.remove(chosen)
            running.append(chosen)
        alike = Counter(each.model for each in running)
        places, room = (1 / len(running), 1 / alike[fresh.model]) if fresh in running else (0.0, 0.0)
        if not shares or (shares[-1].places, shares[-1].room) != (places, room):
            shares.append(PlaceShare(at_s, places, room))
        others = [each for each in running if each is not fresh]
        if not others:
            return shares
        lines = {
            each.id: max(_TINY, min(lines_at_once / len(running), rooms[each.id] / alike[each.model]))
            for each in others
        }
        ends_s = {each.id: min(left_s[each.id] / lines[each.id], each.expires_s - now_s - at_s) for each in others}
        step_s = max(0.0, min(ends_s.values()))
        for each in others:
            left_s[each.id] -= step_s * lines[each.id]
        at_s += step_s
        running = [each for each in running if each is fresh or ends_s[each.id] > step_s]
        waiting = [each for each in waiting if each is fresh or each.expires_s - now_s > at_s]
