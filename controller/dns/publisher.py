"""Has a provider say what the last record tree says, for as long as that takes. It waits for no provider longer than a
deadline, and nobody waits for it: while one is slow, only the newest tree is kept.
"""

from __future__ import annotations

import asyncio
from typing import Never

from structlog.typing import FilteringBoundLogger

from controller.dns.provider import DnsError, DnsOutdated, DnsProvider, DnsRefused, changes_between
from gateway.ground.naming.tree import RecordTree
from gateway.ground.supervisor import Backoff

DEADLINE_S = 30.0
_BACKOFF = Backoff()


class Publisher:
    """In front of one provider. `run` is for a task of whoever owns it."""

    def __init__(
        self,
        provider: DnsProvider,
        log: FilteringBoundLogger,
        *,
        deadline_s: float = DEADLINE_S,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self.fault = ""
        """Why the newest tree is not said yet; empty when it is, or when there is none."""
        self._provider = provider
        self._log = log
        self._deadline_s = deadline_s
        self._backoff = backoff
        self._newest: RecordTree | None = None
        self._said: RecordTree | None = None
        """What is said for certain; None: nobody knows."""
        self._news = asyncio.Event()

    @property
    def published(self) -> int:
        """Version that is said for certain; 0: nobody knows."""
        return 0 if self._said is None else self._said.version

    def take(self, tree: RecordTree) -> None:
        """What is to be said from now on."""
        self._newest = tree
        self._news.set()

    async def run(self) -> Never:
        failures = 0
        while True:
            await self._news.wait()
            self._news.clear()
            assert self._newest is not None, "news are of a tree"
            if await self._publish(self._newest):
                failures = 0
                continue
            failures += 1
            self._news.set()
            await asyncio.sleep(self._backoff.pause_s(failures))

    async def _publish(self, tree: RecordTree) -> bool:
        """Whether there is nothing left to do for this tree: it is said, or will never be."""
        changes = changes_between(self._said, tree)
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._provider.publish(tree, changes)
        except DnsRefused as error:
            self._tell(tree, f"refused: {error}")
            return True
        except DnsOutdated as error:
            self._said = None
            self._tell(tree, f"outdated: {error}")
            return True
        except (DnsError, TimeoutError) as error:
            self._said = None
            self._tell(tree, str(error) or f"no answer within {self._deadline_s:g} s")
            return False
        self._said, self.fault = tree, ""
        self._log.info("records published", version=tree.version, regions=sorted(changes.regions | changes.gone))
        return True

    def _tell(self, tree: RecordTree, fault: str) -> None:
        """Once, however often it is met."""
        if fault != self.fault:
            self._log.error("records not published: the names say what they said", version=tree.version, reason=fault)
        self.fault = fault
