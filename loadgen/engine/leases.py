"""Leases on the blocks that a prefill worker keeps for decode workers until fetched, freed or expired. Pure.

Each lease ends exactly once, and its blocks are handed back then.
"""

from __future__ import annotations

from loadgen.engine.blocks import Holding


class _Lease:
    __slots__ = ("held", "until_ns")

    def __init__(self, held: Holding, until_ns: int) -> None:
        self.held = held
        self.until_ns = until_ns


class Leases:
    """Leases by request id. There are at most as many as the cache has blocks."""

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
        """Time at which the first lease expires."""
        return self._next_ns

    def grant(self, request_id: str, held: Holding, until_ns: int) -> None:
        assert request_id not in self._leases, "kept twice"
        self._leases[request_id] = _Lease(held, until_ns)
        self._look()

    def renew(self, request_id: str, until_ns: int) -> bool:
        """Extend a lease at least until `until_ns`: the decode worker's request still waits for room. False: the lease
        has ended."""
        lease = self._leases.get(request_id)
        if lease is None:
            return False
        lease.until_ns = max(lease.until_ns, until_ns)
        self._look()
        return True

    def end(self, request_id: str) -> Holding | None:
        """End a lease whose blocks were fetched or are not needed, and return its blocks. None: it has ended
        already."""
        lease = self._leases.pop(request_id, None)
        self._look()
        return None if lease is None else lease.held

    def expire(self, now_ns: int) -> list[tuple[str, Holding]]:
        """End the leases that have expired by `now_ns` and return their blocks by request id."""
        over = [(request_id, lease.held) for request_id, lease in self._leases.items() if lease.until_ns <= now_ns]
        for request_id, _ in over:
            del self._leases[request_id]
        self.expired += len(over)
        self._look()
        return over

    def _look(self) -> None:
        self._next_ns = min([lease.until_ns for lease in self._leases.values()], default=None)
