"""How many of a region's clients' requests want to run at once, averaged, from what came, what runs and what waits.

Little's law says it two ways: what runs now, and arrivals times the time that each takes. The second one knows of a
rise before the first one is full of it, the first one of requests that take long. The larger counts, and a queue
besides, as far as it is to be worked off.
"""

from __future__ import annotations

import math

from gateway.core.scaling.vocabulary import WHOLE, Sample, ScalingSettings
from gateway.core.vocabulary import Outcome

_SECOND_NS = 1_000_000_000
_SERVICE_WINDOWS = 5
"""What a request takes changes slowly, and few may end in one window."""

_WOULD_HAVE_RUN = frozenset(
    {Outcome.REJECTED_QUEUE_FULL, Outcome.REJECTED_DEADLINE, Outcome.EXPIRED_IN_QUEUE, Outcome.ABANDONED}
)


def would_have_run(outcome: Outcome) -> bool:
    """Of what never came to run: had there been more replicas. It counts as having come."""
    return outcome in _WOULD_HAVE_RUN


class Demand:
    """Of one pool, at the gateway where its clients came in. Exponential averages, by the time that has passed:

        running    mean of what runs
        arrivals   mean rate λ of requests that came, a second: those that ended, and by how many more are open
        service    mean time S that one which ended had run
        offered    max(running, λ·S) + waiting · min(1, S / drain)

    (J. D. C. Little, A Proof for the Queuing Formula L = λW, 1961. The last term is Little's law again: to work off Q
    requests within D takes Q/D a second more, of which Q/D·S run at once, and never more than Q.)"""

    def __init__(self, settings: ScalingSettings) -> None:
        self._settings = settings
        self.running = 0.0
        self.waiting = 0.0
        self.arrivals = 0.0
        self._pinned = 0.0
        self._open = 0.0
        self._ended = 0
        self._open_now = 0
        self._served_s = 0.0
        self._served = 0.0
        self._looked_ns: int | None = None

    @property
    def service_s(self) -> float:
        """0: none has ended yet."""
        return self._served_s / self._served if self._served else 0.0

    @property
    def offered(self) -> int:
        """In thousandths."""
        service_s = self.service_s
        drain_s = self._settings.drain_ns / _SECOND_NS
        queued = self.waiting * (min(1.0, service_s / drain_s) if service_s else 1.0)
        return round(WHOLE * (max(self.running, self.arrivals * service_s) + queued))

    @property
    def pinned(self) -> int:
        """Of `offered`, what may not leave the region."""
        return min(self.offered, round(self.offered * self._pinned / self._open)) if self._open else 0

    def ended(self, took_ns: int | None) -> None:
        """One of them has, and had run for so long, wherever that was; None: it never came to run."""
        self._ended += 1
        if took_ns is not None:
            self._served += 1.0
            self._served_s += took_ns / _SECOND_NS

    def look(self, sample: Sample, now_ns: int) -> None:
        """The first look is believed as it is; from then on each counts for the time since the one before."""
        open_now = sample.running + sample.waiting
        if self._looked_ns is None:
            self.running, self.waiting = float(sample.running), float(sample.waiting)
            self._pinned, self._open = float(sample.pinned), float(open_now)
        elif (passed_ns := now_ns - self._looked_ns) > 0:
            window_ns = self._settings.window_ns
            kept = math.exp(-passed_ns / window_ns)
            self.running = _mixed(self.running, sample.running, kept)
            self.waiting = _mixed(self.waiting, sample.waiting, kept)
            came = max(0, self._ended + open_now - self._open_now)
            self.arrivals = _mixed(self.arrivals, came * _SECOND_NS / passed_ns, kept)
            self._pinned = _mixed(self._pinned, sample.pinned, kept)
            self._open = _mixed(self._open, open_now, kept)
            forgotten = math.exp(-passed_ns / (window_ns * _SERVICE_WINDOWS))
            self._served *= forgotten
            self._served_s *= forgotten
        self._ended, self._open_now = 0, open_now
        self._looked_ns = now_ns


def _mixed(before: float, now: float, kept: float) -> float:
    return before * kept + now * (1.0 - kept)


def needed_slots(offered: int, headroom: float) -> int:
    """Slots for so much load, both in thousandths: a + β·√a, so that a request seldom finds none free.

    Square-root staffing for M/M/c: Halfin and Whitt, Heavy-Traffic Limits for Queues with Many Exponential Servers,
    1981. Slots stand in for servers; that they slow each other down is in the service time that is measured."""
    load = offered / WHOLE
    return math.ceil(WHOLE * (load + headroom * math.sqrt(load)))


def needed_replicas(slots: int, concurrency: int) -> int:
    """ceil(load / load of one replica), as KEDA and Kubernetes' autoscaler reckon an `AverageValue`."""
    return -(-slots // (concurrency * WHOLE))
