"""Maximum flow from regions that need slots (demands) to regions that have slots (supplies).

Exact, by augmenting paths (Ford and Fulkerson 1956; Edmonds and Karp 1972), from a greedy start: a region's own slots
first, then its nearest neighbours'. All numbers are integers.
"""

from __future__ import annotations

from collections import deque


class Flow:
    """Flow from demands to supplies. Each demand lists the supplies that it may use, the best first.

    `add` and `remove` change a supply; `settle` makes the flow maximal again.
    """

    def __init__(self, demands: list[int], ways: list[list[int]], room: list[int]) -> None:
        self.left = list(demands)
        """Unmet part of each demand."""
        self.room = list(room)
        """Unused part of each supply."""
        self._ways = ways
        self._used: list[dict[int, int]] = [{} for _ in room]
        """Amount that each demand uses, by supply."""

    @property
    def unmet(self) -> int:
        return sum(self.left)

    def may_use(self, demand: int, supply: int) -> bool:
        return supply in self._ways[demand]

    def used(self, supply: int, demand: int) -> int:
        return self._used[supply].get(demand, 0)

    def users(self, supply: int) -> dict[int, int]:
        return dict(self._used[supply])

    def settle(self) -> set[int]:
        """Make the flow maximal. Return the supplies where more room would let more of the demands be met; empty if all
        are met."""
        for rank in range(max((len(ways) for ways in self._ways), default=0)):
            for demand, ways in enumerate(self._ways):
                if rank < len(ways):
                    self._move(demand, ways[rank], min(self.left[demand], self.room[ways[rank]]))
        while True:
            path, reached = self._path()
            if not path:
                return reached
            self._push(path)

    def add(self, supply: int, amount: int) -> None:
        self.room[supply] += amount

    def remove(self, supply: int, amount: int) -> None:
        """Take room away from a supply. Demands that used it become unmet by that amount, those of other regions
        first."""
        spared = min(self.room[supply], amount)
        self.room[supply] -= spared
        amount -= spared
        used = self._used[supply]
        for demand in sorted(used, key=lambda each: (self._ways[each][0] == supply, each)):
            taken = min(used[demand], amount)
            amount -= taken
            self.left[demand] += taken
            _lower(used, demand, taken)
        assert amount == 0, "no more is taken away than there is"

    def copy(self) -> Flow:
        other = Flow(self.left, self._ways, self.room)
        other._used = [dict(each) for each in self._used]
        return other

    def _move(self, demand: int, supply: int, amount: int) -> None:
        if amount:
            self.left[demand] -= amount
            self.room[supply] -= amount
            self._used[supply][demand] = self._used[supply].get(demand, 0) + amount

    def _path(self) -> tuple[list[int], set[int]]:
        """Augmenting path: demand, supply, demand, ..., supply with room; the first demand gains, and each further one
        moves to make room. Without such a path it is empty, and the supplies that were reached are returned."""
        came_from: dict[int, int] = {}
        seen = [left > 0 for left in self.left]
        before: list[int] = [-1] * len(self.left)
        waiting = deque(demand for demand, left in enumerate(self.left) if left > 0)
        while waiting:
            demand = waiting.popleft()
            for supply in self._ways[demand]:
                if supply in came_from:
                    continue
                came_from[supply] = demand
                if self.room[supply]:
                    return self._way_to(supply, came_from, before), set()
                for other in self._used[supply]:
                    if not seen[other]:
                        seen[other] = True
                        before[other] = supply
                        waiting.append(other)
        return [], set(came_from)

    def _way_to(self, supply: int, came_from: dict[int, int], before: list[int]) -> list[int]:
        path = [supply]
        while True:
            demand = came_from[path[-1]]
            path.append(demand)
            if before[demand] < 0:
                return path[::-1]
            path.append(before[demand])

    def _push(self, path: list[int]) -> None:
        """Augment along demand, supply, demand, supply: each later demand gives up the supply before it for the one
        after."""
        amount = min(self.left[path[0]], self.room[path[-1]])
        for at in range(2, len(path), 2):
            amount = min(amount, self._used[path[at - 1]][path[at]])
        self.left[path[0]] -= amount
        self.room[path[-1]] -= amount
        for at in range(0, len(path), 2):
            demand, supply = path[at], path[at + 1]
            if at:
                _lower(self._used[path[at - 1]], demand, amount)
            self._used[supply][demand] = self._used[supply].get(demand, 0) + amount


def _lower(used: dict[int, int], demand: int, amount: int) -> None:
    left = used[demand] - amount
    if left:
        used[demand] = left
    else:
        del used[demand]
