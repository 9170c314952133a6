"""Drives a silence detector through the arrivals of a link, as the edges of gateway and controller do."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.silence import BEAT_NS, SilenceDetector


class WatchedLink:
    """Receiving end of a link: signs of life arrive at times of the test's choosing, and the detector is asked whenever
    it wants to be."""

    def __init__(self, detector: SilenceDetector) -> None:
        self.detector = detector
        self.now_ns = 0
        self.alarms_ns: list[int] = []
        """Times of the looks at which the other end counted as silent."""
        self._look_ns = 0

    def hear(self, beats_ns: Iterable[int]) -> list[int]:
        """Let beats arrive. Returns the alarms up to the last one."""
        return self.hear_each((at_ns, True) for at_ns in beats_ns)

    def hear_each(self, arrivals: Iterable[tuple[int, bool]]) -> list[int]:
        """Let signs of life arrive, with True for a beat. Returns the alarms up to the last one."""
        before = len(self.alarms_ns)
        for at_ns, is_beat in arrivals:
            self.wait_until(at_ns)
            self.detector.hear(at_ns, is_beat=is_beat)
        return self.alarms_ns[before:]

    def wait_until(self, until_ns: int) -> list[int]:
        """Let time pass. Returns the alarms before `until_ns`."""
        before = len(self.alarms_ns)
        while self._look_ns < until_ns:
            wait_ns = self.detector.look(self._look_ns)
            if not wait_ns:
                self.alarms_ns.append(self._look_ns)
            self._look_ns += wait_ns or BEAT_NS
        self.now_ns = until_ns
        return self.alarms_ns[before:]

    def stall_until(self, until_ns: int) -> None:
        """Let time pass in which this process does not run."""
        self._look_ns = self.now_ns = until_ns
