"""Keeps failures of the plug-in from the engine: a failure is logged once and ends the counting, never a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vllm_expert_counts import logger

Result = TypeVar("Result")


class Guard:
    """Switch of the counting in one process. `where`: the process, in words."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.is_on = True

    def off(self, why: str) -> None:
        if self.is_on:
            self.is_on = False
            logger.warning("expert counts are off in the %s: %s. Everything else goes on.", self._where, why)

    def run(self, do: Callable[[], Result], otherwise: Result) -> Result:
        if not self.is_on:
            return otherwise
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - whatever it is, a request is served all the same
            logger.warning("expert counts failed", exc_info=error)
            self.off(f"{type(error).__name__}: {error}")
            return otherwise
