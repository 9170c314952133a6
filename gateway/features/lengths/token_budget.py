"""Keeps the learnt estimates of requests' tokens over a restart. It holds no text: models, tenants and numbers only.

A file that cannot be read is logged and not used; one that cannot be written is logged and tried again. Requests are
estimated either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gateway.core.features.lengths.events import TokenBudgetSnapshot
from gateway.core.features.lengths.token_budget import TokenBudget
from gateway.core.vocabulary import GatewayId
from mesh.state_files import StateFile, StateUnusable
from mesh.threads import finish_in_thread

_SECOND_NS = 1_000_000_000


class TokenBudgetKeeper:
    """File of the token estimates of one gateway."""

    def __init__(self, gateway_id: GatewayId, folder: Path, live: TokenBudget, log: FilteringBoundLogger) -> None:
        path = folder / f"{gateway_id}.token_budget.json"
        self._file: StateFile[TokenBudgetSnapshot] = StateFile(path, "token budget", 1, TokenBudgetSnapshot)
        self._live = live
        self._log = log
        self._saved = 0

    def restore(self, take: Callable[[TokenBudgetSnapshot], object]) -> None:
        """Read the stored estimates before the gateway serves."""
        try:
            found = self._file.read()
        except StateUnusable as error:
            self._log.error("token_budget_state_unusable", reason=str(error))
            return
        if found is not None:
            take(found)

    async def run(self, interval_ns: int) -> None:
        """Save repeatedly until cancelled; then save once more."""
        try:
            while True:
                await asyncio.sleep(interval_ns / _SECOND_NS)
                await self.save()
        finally:
            await self.save()

    async def save(self) -> None:
        """Save the estimates unless nothing was learnt since the last save."""
        observed = self._live.observed
        if observed == self._saved:
            return
        try:
            await finish_in_thread(self._file.write, self._live.snapshot())
        except OSError as error:
            self._log.error("token_budget_state_not_persisted", reason=str(error))
        else:
            self._saved = observed
