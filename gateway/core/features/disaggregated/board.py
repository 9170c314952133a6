"""Workers of a pool during one tick: projected loads, the envelope of each group, margins, free slots. The board is
built for a tick and updated with each admission; it never chooses a request."""

from __future__ import annotations

import numpy as np

from gateway.core.features.disaggregated.books import Group, Worker
from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.score import Score


class Board:
    """Workers by place (index); those of a group are adjacent."""

    def __init__(
        self,
        groups: list[Group],
        projected: Numbers | None,
        discounts: list[float],
        *,
        reward_weight: float,
        penalty_weight: float | None,
    ) -> None:
        """`projected`: load of each worker (row) at each step (column); None: only the current loads."""
        self.workers: list[Worker] = []
        self._discounts = discounts
        self._discount_weights = np.array(discounts)
        self._reward_weight = reward_weight
        self._bounds: list[tuple[int, int]] = []
        """Start and end of the group, for each place."""
        for group in groups:
            first = len(self.workers)
            self.workers += group.workers
            self._bounds += [(first, len(self.workers))] * len(group.workers)
        if projected is None:
            projected = np.array([[worker.total_load] for worker in self.workers], np.float64).reshape(-1, 1)
        self._loads = projected
        self._penalties = [
            float(stop - start) if penalty_weight is None else penalty_weight for start, stop in self._bounds
        ]
        self.free = [worker.free if worker.is_open else 0 for worker in self.workers]
        self.free_total = sum(self.free)
        self._free = np.array(self.free, np.float64)
        self._margins = np.zeros_like(projected)
        self._least = np.zeros(len(self.workers))
        """Smallest margin of each worker over the horizon."""
        self._envelopes: dict[int, Numbers] = {}
        """Largest load of each group at each step, by the group's start."""
        for start, stop in dict.fromkeys(self._bounds):
            self._envelopes[start] = projected[start:stop].max(axis=0)
            self._measure(start, stop)

    def _measure(self, start: int, stop: int) -> None:
        self._margins[start:stop] = self._envelopes[start] - self._loads[start:stop]
        self._least[start:stop] = self._margins[start:stop].min(axis=1)

    # One worker

    def is_alone(self, place: int) -> bool:
        """Return whether the worker is the only one of its group."""
        start, stop = self._bounds[place]
        return stop - start == 1

    def margin(self, place: int) -> float:
        """Smallest margin of the worker over the horizon."""
        return float(self._least[place])

    def room(self, place: int) -> int:
        """Largest request, in tokens, that the worker may be sent."""
        return self.workers[place].room_left

    def score(self, place: int) -> Score:
        margins = self._margins[place].tolist()
        return Score(margins, self._discounts, self._reward_weight, self._penalties[place])

    # Choice of a worker. At least one has a free slot

    def emptiest(self) -> int:
        """Place of the worker with most free slots; of equal ones, the widest margin."""
        most = np.flatnonzero(self._free == self._free.max())
        least = self._least[most]
        return self._widest(most[least == least.max()].tolist())

    def next_to_fill(self) -> int:
        """Place of the worker with the largest product of free slots and margin; of equal ones, the widest margin."""
        keys = np.where(self._free > 0, self._free * self._least, -1.0)
        best = np.flatnonzero(keys == keys.max())
        least = self._least[best]
        return self._widest(best[least == least.max()].tolist())

    def _widest(self, places: list[int]) -> int:
        """Place with the widest discounted sum of margins over the horizon; of equal ones, most free slots, then
        least load. The sum decides because at each step some worker is at the envelope, so the smallest margin of
        many is 0."""
        if len(places) == 1:
            return places[0]
        wide = (self._margins[places] @ self._discount_weights).tolist()
        keys = [
            (margin, self.free[place], -self.workers[place].total_load, -place)
            for margin, place in zip(wide, places, strict=True)
        ]
        return -max(keys)[3]

    def best_taker(self, tokens: int) -> int | None:
        """Place of the worker with a free slot and room where the request scores highest; None: no worker has both."""
        takers = [place for place, free in enumerate(self.free) if free > 0 and self.room(place) >= tokens]
        if not takers:
            return None
        beyond = np.maximum(tokens - self._margins[takers], 0.0) @ self._discount_weights
        reward = self._reward_weight * sum(self._discounts) * tokens
        worth = reward - np.array([self._penalties[place] for place in takers]) * beyond
        keys = [
            (worth_, self._least[place], self.free[place], -place)
            for worth_, place in zip(worth.tolist(), takers, strict=True)
        ]
        return -max(keys)[3]

    # Changes

    def admitted(self, place: int, tokens: int) -> None:
        """Add the tokens of an admitted request to the worker's load at all steps, and take one slot."""
        self._take_slots(place, 1)
        start, stop = self._bounds[place]
        load = self._loads[place]
        load += tokens
        envelope = self._envelopes[start]
        if (load > envelope).any():
            np.maximum(envelope, load, out=envelope)
            self._measure(start, stop)
        else:
            self._margins[place] = envelope - load
            self._least[place] = self._margins[place].min()

    def shut(self, place: int) -> None:
        """Close the worker for this round: no waiting request fits it."""
        self._take_slots(place, self.free[place])

    def keep_roomiest(self, tokens: int) -> None:
        """Close, of the workers without room for the request, the one with most room, so that it becomes free for
        it."""
        short = [
            (self.room(place), -place) for place, free in enumerate(self.free) if free > 0 and self.room(place) < tokens
        ]
        if short:
            self.shut(-max(short)[1])

    def reopen(self) -> None:
        """Restore the free slots of all workers, including closed ones."""
        self.free = [worker.free if worker.is_open else 0 for worker in self.workers]
        self.free_total = sum(self.free)
        self._free = np.array(self.free, np.float64)

    def _take_slots(self, place: int, slots: int) -> None:
        self.free[place] -= slots
        self._free[place] -= slots
        self.free_total -= slots
