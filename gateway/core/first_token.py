"""How long a replica of ours takes to its first token, learnt from those that came: so much always, so much a byte.

It only fits a line; who asks decides what to make of it.
"""

from __future__ import annotations

_FORGET = 0.98
"""What a sample still counts after the next one: the last fifty make the line."""
_SAMPLES_MIN = 8.0


class FirstTokenLine:
    """Least squares over the last samples of (bytes that no cache held, time to the first token)."""

    def __init__(self) -> None:
        self._count = 0.0
        self._sum_bytes = 0.0
        self._sum_ns = 0.0
        self._sum_bytes_bytes = 0.0
        self._sum_bytes_ns = 0.0
        self._byte_ns = 0.0

    def add(self, uncached_bytes: int, took_ns: int) -> None:
        assert uncached_bytes >= 0, "nobody knows more of a prompt than there is"
        assert took_ns >= 0, "time went backwards"
        self._count = self._count * _FORGET + 1
        self._sum_bytes = self._sum_bytes * _FORGET + uncached_bytes
        self._sum_ns = self._sum_ns * _FORGET + took_ns
        self._sum_bytes_bytes = self._sum_bytes_bytes * _FORGET + uncached_bytes * uncached_bytes
        self._sum_bytes_ns = self._sum_bytes_ns * _FORGET + uncached_bytes * took_ns
        if self._sum_bytes:
            mean_ns = self._sum_ns / self._sum_bytes
            self._byte_ns = min(self.slope_ns() or mean_ns, mean_ns)

    def slope_ns(self) -> float:
        """A byte's share; 0 until enough was seen, or where more bytes have not taken longer."""
        if self._count < _SAMPLES_MIN:
            return 0.0
        mean_bytes, mean_ns = self._sum_bytes / self._count, self._sum_ns / self._count
        variance = self._sum_bytes_bytes / self._count - mean_bytes * mean_bytes
        covariance = self._sum_bytes_ns / self._count - mean_bytes * mean_ns
        return max(0.0, covariance / variance) if variance > 1.0 else 0.0

    def byte_ns(self) -> float:
        """Nanoseconds that a byte takes: a further byte's share, and no more than the average of all bytes, since a
        prompt without uncached bytes takes time as well; that average until enough was seen. 0: not known."""
        return self._byte_ns

    def estimate_ns(self, uncached_bytes: int) -> float:
        """Never negative; 0 until enough was seen, which leaves a choice to round trips."""
        if self._count < _SAMPLES_MIN:
            return 0.0
        mean_bytes, mean_ns = self._sum_bytes / self._count, self._sum_ns / self._count
        return max(0.0, mean_ns + self.slope_ns() * (uncached_bytes - mean_bytes))
