"""Demand of a region's clients: the average number of their requests that want to run at once, from arrivals, running
and waiting requests.

Little's law gives it in two ways: the requests that run, and arrival rate times service time. The second shows a rise
before enough requests run, the first shows requests that take long. The larger counts, plus the queue as far as it is
to be worked off.
"""

from __future__ import annotations

import math

from gateway.core.features.scaling.vocabulary import WHOLE, Sample, ScalingSettings
from gateway.core.vocabulary import Outcome

_SECOND_NS = 1_000_000_000
_SERVICE_WINDOWS = 5
"""Averaging windows for service times: they change slowly, and few requests may end in one window."""

_WOULD_HAVE_RUN = frozenset(
    {Outcome.REJECTED_QUEUE_FULL, Outcome.REJECTED_DEADLINE, Outcome.EXPIRED_IN_QUEUE, Outcome.ABANDONED}
)


def would_have_run(outcome: Outcome) -> bool:
    """Return whether a request with this outcome that never ran would have run with more replicas; it counts as an
    arrival."""
    return outcome in _WOULD_HAVE_RUN


class Demand:
    """Demand of one pool, at the gateway where its clients' requests arrived. Exponential averages over elapsed time:

        running    mean number of running requests
        arrivals   mean rate λ of arrivals per second: requests that ended, plus the increase of those that are open
        service    mean time S that an ended request had run
        offered    max(running, λ·S) + waiting · min(1, S / drain)

    (J. D. C. Little, A Proof for the Queuing Formula L = λW, 1961. The last term is Little's law again: to work off Q
    requests within D takes Q/D more per second, of which Q/D·S run at once, and never more than Q.)
    """

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
        """Mean service time in seconds; 0: no request has ended yet."""
        return self._served_s / self._served if self._served else 0.0

    @property
    def offered(self) -> int:
        """Requests that want to run at once, in thousandths."""
        service_s = self.service_s
        drain_s = self._settings.drain_ns / _SECOND_NS
        queued = self.waiting * (min(1.0, service_s / drain_s) if service_s else 1.0)
        return round(WHOLE * (max(self.running, self.arrivals * service_s) + queued))

    @property
    def pinned(self) -> int:
        """Part of `offered` that may not leave the region."""
        return min(self.offered, round(self.offered * self._pinned / self._open)) if self._open else 0

    def ended(self, took_ns: int | None) -> None:
        """Record the end of a request that had run for `took_ns`, in any region; None: it never ran."""
        self._ended += 1
        if took_ns is not None:
            self._served += 1.0
            self._served_s += took_ns / _SECOND_NS

    def look(self, sample: Sample, now_ns: int) -> None:
        """Update the averages. The first sample is taken as it is; later ones are weighted by the time since the
        previous one."""
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
    """Slots for this load, both in thousandths: a + β·√a, so that a request seldom finds none free.

    Square-root staffing for M/M/c: Halfin and Whitt, Heavy-Traffic Limits for Queues with Many Exponential Servers,
    1981. Slots stand in for servers; their mutual slow-down is part of the measured service time.
    """
    load = offered / WHOLE
    return math.ceil(WHOLE * (load + headroom * math.sqrt(load)))


def needed_replicas(slots: int, concurrency: int) -> int:
    """Replicas for these slots: ceil(load / load of one replica), as KEDA and Kubernetes' autoscaler compute it for an
    `AverageValue`."""
    return -(-slots // (concurrency * WHOLE))
