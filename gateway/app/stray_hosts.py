"""Tells operators which hosts prefill workers name as their side channels that no region file lets them, so that an
honest one can be allowed. Each is told once, and few of each worker: what they name is theirs to choose.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import Target

_HOSTS_MAX = 8
"""Of one worker."""
_WORKERS_MAX = 1024


class StrayHosts:
    """What one gateway has told of them."""

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
        self._log.warning(
            "side_channel_refused",
            replica=worker.id,
            host=host,
            fix="if the host is the replica's own, name it in the replica's side_channel_hosts",
        )
