"""Stored responses: which target has which, so that requests that refer to one reach that target.

Keys are hashes of tenant and response id, so one tenant cannot reach another's. The map is bounded; the least recently
used entry is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import LegState
from gateway.core.vocabulary import Target


class StoredResponses(Feature):
    """Target of each stored response. The feature is on whatever the config says: any engine may store a response."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._count_max = core.config.placement.stored_responses_max
        self._target_of: OrderedDict[str, Target] = OrderedDict()

    def __len__(self) -> int:
        return len(self._target_of)

    def is_on(self) -> bool:
        return True

    def stored(self, leg: LegState, key: str, /) -> None:
        self._target_of[key] = leg.target
        self._target_of.move_to_end(key)
        self._forget_oldest()

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._count_max = config.placement.stored_responses_max
        self._forget_oldest()

    def pinned(self, follows: str, /) -> Target | None:
        target = self._target_of.get(follows)
        if target is not None:
            self._target_of.move_to_end(follows)
        return target

    def describe(self, now_ns: int, /) -> dict[str, object]:  # noqa: ARG002
        return {"stored_responses": len(self._target_of)}

    def _forget_oldest(self) -> None:
        while len(self._target_of) > self._count_max:
            self._target_of.popitem(last=False)
