"""Publishes the newest record tree through a provider, retries until that succeeds, and checks at intervals that the
records still stand.

It waits for no provider longer than a deadline, and no caller waits for it: while a provider is slow, only the newest
tree is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Never

from structlog.typing import FilteringBoundLogger

from controller.dns.provider import DnsError, DnsOutdated, DnsProvider, DnsRefused, changes_between
from mesh.naming.tree import RecordTree
from mesh.supervisor import Backoff
from mesh.task_group import TaskGroup

DEADLINE_S = 30.0
UNSAID_CHECK_S = 30.0
"""Longest time between tries of a tree that is refused or outdated: the obstacle may have gone."""
_BACKOFF = Backoff()

PUBLISHED, REFUSED, OUTDATED, FAILED = "published", "refused", "outdated", "failed"
PUT_RIGHT = "put_right"
"""Records had been changed by another writer."""


class RecordPublisher:
    """Publishes through one provider. Its owner runs `run` in a task."""

    def __init__(
        self,
        provider: DnsProvider,
        log: FilteringBoundLogger,
        *,
        deadline_s: float = DEADLINE_S,
        backoff: Backoff = _BACKOFF,
        check_s: float | None = None,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """`check_s`: interval of the checks that the records still stand; None: no other writer could have changed
        them. `on_result` is called with the result of each attempt."""
        self.fault = ""
        """Reason why the newest tree is not published; empty when it is, or when there is none."""
        self.settle_fault = ""
        """Reason why published records have not reached all servers, or are not as they should be."""
        self.is_settled = False
        """All servers answer what was published last."""
        self._provider = provider
        self._log = log
        self._deadline_s = deadline_s
        self._backoff = backoff
        self._check_s = check_s
        self._on_result = on_result
        self._newest: RecordTree | None = None
        self._said: RecordTree | None = None
        """Tree that is certainly published; None: unknown."""
        self._news = asyncio.Event()

    @property
    def published(self) -> int:
        """Version that is certainly published; 0: unknown."""
        return 0 if self._said is None else self._said.version

    def state(self) -> dict[str, object]:
        """State for operators, JSON-able."""
        return {"version": self.published, "fault": self.fault, "settle_fault": self.settle_fault}

    def take(self, tree: RecordTree) -> None:
        """Set the tree to publish."""
        self._newest = tree
        self._news.set()

    async def run(self) -> Never:
        failures = 0
        while True:
            is_news = await self._rested()
            self._news.clear()
            if self._newest is None:
                continue
            if await self._publish(self._newest, is_check=not is_news):
                failures = 0
                continue
            failures += 1
            self._news.set()
            await asyncio.sleep(self._backoff.pause_s(failures))

    async def _rested(self) -> bool:
        """Wait for a new tree, or until it is time to check, while the published records settle. True: there is a new
        tree."""
        if self._news.is_set():
            return True
        async with TaskGroup() as tasks:
            settling = tasks.create_task(self._settle())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_check_s()):
                    await self._news.wait()
            settling.cancel()
        return self._news.is_set()

    def _until_check_s(self) -> float | None:
        if self._check_s is None:
            return None
        return min(self._check_s, UNSAID_CHECK_S) if self.fault else self._check_s

    async def _settle(self) -> None:
        failures = 0
        while self._said is not None:
            try:
                await self._provider.settle()
            except DnsError as error:
                failures += 1
                fault = str(error)
                if fault != self.settle_fault:
                    self._log.warning("dns_records_propagation_unconfirmed", version=self.published, reason=fault)
                self.settle_fault = fault
                await asyncio.sleep(self._backoff.pause_s(failures))
            else:
                self.settle_fault, self.is_settled = "", True
                return

    async def _publish(self, tree: RecordTree, *, is_check: bool) -> bool:
        """Return whether nothing is left to do for this tree: it is published, or never will be."""
        was_said = self._said == tree
        changes = changes_between(None if is_check else self._said, tree)
        self.is_settled = False
        try:
            async with asyncio.timeout(self._deadline_s):
                changed = await self._provider.publish(tree, changes)
        except DnsRefused as error:
            self._tell(tree, f"refused: {error}", REFUSED)
            return True
        except DnsOutdated as error:
            self._said = None
            self._tell(tree, f"outdated: {error}", OUTDATED)
            return True
        except (DnsError, TimeoutError) as error:
            self._said = None
            self._tell(tree, str(error) or f"no answer within {self._deadline_s:g} s", FAILED)
            return False
        self._said, self.fault = tree, ""
        if not is_check or not was_said:
            self._on_result(PUBLISHED)
            regions = sorted(changes.regions | changes.gone)
            self._log.info("dns_records_published", version=tree.version, regions=regions)
        elif changed:
            self._on_result(PUT_RIGHT)
            self._log.warning("dns_records_drift_corrected", changed=changed)
        return True

    def _tell(self, tree: RecordTree, fault: str, result: str) -> None:
        """Record a failed attempt; a fault that repeats is logged once."""
        self._on_result(result)
        if fault != self.fault:
            self._log.error("dns_records_publish_failed", version=tree.version, reason=fault)
        self.fault = fault
