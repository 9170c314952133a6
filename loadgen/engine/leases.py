"""What a prefill worker keeps for those who will fetch it: until they have, let it go, or its lease is over. Pure.

Each lease ends exactly once, one way or another, and what it kept is handed back then.
"""

from __future__ import annotations

from loadgen.engine.blocks import Holding


class _Lease:
    __slots__ = ("held", "until_ns")

    def __init__(self, held: Holding, until_ns: int) -> None:
        self.held = held
        self.until_ns = until_ns


class Leases:
    """By request. There are no more of them than the cache has blocks."""

    def __init__(self) -> None:
        self.expired = 0
        self._leases: dict[str, _Lease] = {}
        self._next_ns: int | None = None

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leases

    @property
    def next_ns(self) -> int | None:
        """When the first of them is over."""
        return self._next_ns

    def grant(self, request_id: str, held: Holding, until_ns: int) -> None:
        assert request_id not in self._leases, "kept twice"
        self._leases[request_id] = _Lease(held, until_ns)
        self._look()

    def renew(self, request_id: str, until_ns: int) -> bool:
        """Whoever wants it still waits for its turn. False: it is gone."""
        lease = self._leases.get(request_id)
        if lease is None:
            return False
        lease.until_ns = max(lease.until_ns, until_ns)
        self._look()
        return True

    def end(self, request_id: str) -> Holding | None:
        """It has been fetched, or is wanted no longer. None: it is gone already."""
        lease = self._leases.pop(request_id, None)
        self._look()
        return None if lease is None else lease.held

    def expire(self, now_ns: int) -> list[tuple[str, Holding]]:
        """Those that are over by now."""
        over = [(request_id, lease.held) for request_id, lease in self._leases.items() if lease.until_ns <= now_ns]
        for request_id, _ in over:
            del self._leases[request_id]
        self.expired += len(over)
        self._look()
        return over

    def _look(self) -> None:
        self._next_ns = min([lease.until_ns for lease in self._leases.values()], default=None)
