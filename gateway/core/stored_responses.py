"""Which target made a stored response, so that whatever refers to it finds its way back. Bounded; the oldest is
forgotten."""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.vocabulary import Target


class StoredResponses:
    """Keys are hashes that the edge makes of tenant and response id, so one tenant cannot reach another's."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._target_of: OrderedDict[str, Target] = OrderedDict()

    def __len__(self) -> int:
        return len(self._target_of)

    def configure(self, count_max: int) -> None:
        self._count_max = count_max
        self._forget_oldest()

    def put(self, key: str, target: Target) -> None:
        self._target_of[key] = target
        self._target_of.move_to_end(key)
        self._forget_oldest()

    def get(self, key: str) -> Target | None:
        target = self._target_of.get(key)
        if target is not None:
            self._target_of.move_to_end(key)
        return target

    def _forget_oldest(self) -> None:
        while len(self._target_of) > self._count_max:
            self._target_of.popitem(last=False)
