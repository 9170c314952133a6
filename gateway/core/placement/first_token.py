"""Time to the first token at this gateway's replicas, as a constant plus a time per byte, fitted to the first tokens
seen.

It only fits the line; the placement policy decides what to make of an estimate.
"""

from __future__ import annotations

_FORGET = 0.98
"""Weight that a sample keeps after each later one: about the last fifty make the line."""
_SAMPLES_MIN = 8.0


class FirstTokenLine:
    """Least squares over recent samples of (bytes that no cache held, time to the first token)."""

    def __init__(self) -> None:
        self._count = 0.0
        self._sum_bytes = 0.0
        self._sum_ns = 0.0
        self._sum_bytes_bytes = 0.0
        self._sum_bytes_ns = 0.0
        self._byte_ns = 0.0

    def add(self, uncached_bytes: int, took_ns: int) -> None:
        assert uncached_bytes >= 0, "no more than the whole prompt is cached"
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
        """Slope of the line in nanoseconds per byte; 0 until enough samples came, or where more bytes took no
        longer."""
        if self._count < _SAMPLES_MIN:
            return 0.0
        mean_bytes, mean_ns = self._sum_bytes / self._count, self._sum_ns / self._count
        variance = self._sum_bytes_bytes / self._count - mean_bytes * mean_bytes
        covariance = self._sum_bytes_ns / self._count - mean_bytes * mean_ns
        return max(0.0, covariance / variance) if variance > 1.0 else 0.0

    def byte_ns(self) -> float:
        """Nanoseconds to prefill one byte: the slope, but at most the average over all bytes, since a prompt without
        uncached bytes takes time as well. That average until enough samples came. 0: not known."""
        return self._byte_ns

    def estimate_ns(self, uncached_bytes: int) -> float:
        """Estimated time to the first token in nanoseconds, never negative; 0 until enough samples came, which leaves
        the choice to round trips."""
        if self._count < _SAMPLES_MIN:
            return 0.0
        mean_bytes, mean_ns = self._sum_bytes / self._count, self._sum_ns / self._count
        return max(0.0, mean_ns + self.slope_ns() * (uncached_bytes - mean_bytes))
