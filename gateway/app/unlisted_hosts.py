"""Tells operators which hosts prefill workers name as side channels although no region file allows them, so that an
honest one can be allowed. Each host is logged once, and few of each worker, since workers choose what they name.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import Target

_HOSTS_MAX = 8
"""Hosts logged of one worker."""
_WORKERS_MAX = 1024


class UnlistedHosts:
    """Hosts that one gateway has logged."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._told: dict[Target, set[str]] = {}

    def take(self, worker: Target, host: str) -> None:
        if worker not in self._told and len(self._told) >= _WORKERS_MAX:
            return
        told = self._told.setdefault(worker, set())
        if host in told or len(told) >= _HOSTS_MAX:
            return
        told.add(host)
        self._log.warning("side_channel_refused", replica=worker.id, host=host)
