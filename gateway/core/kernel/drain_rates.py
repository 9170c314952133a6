"""Drain rates of queues, and the wait that they predict for a request that has just arrived: whether its first token
can come in time, and if not, when a similar one could.

Rates count only times in which requests wait, and only requests that waited. The module estimates and ends no request.
"""

from __future__ import annotations

from typing import Final

from gateway.core.kernel.requests import RequestState
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.value import value
from gateway.core.vocabulary import ModelName

_SECOND_NS: Final = 1_000_000_000
_WINDOW_NS: Final = 20 * _SECOND_NS
"""Waiting time over which a rate is taken; beyond it, time and count are halved, so that older ones weigh less."""
_SEEN_MIN: Final = 8
"""Requests that must have left a queue before its rate is known; until then no request is rejected as late."""
_MODELS_MAX: Final = 1024
_KEEPS: Final = 0.9


@value
class Lateness:
    """Reason to reject a request at once instead of letting it wait."""

    detail: str
    retry_after_ns: int
    """Time after which a similar request would be in time, if no other came."""


class _Drain:
    """Drain rate of one queue: those requests that wait in turn with each other."""

    __slots__ = ("busy_ns", "count", "since_ns")

    def __init__(self) -> None:
        self.count = 0.0
        """Requests that waited and left the queue to run, ..."""
        self.busy_ns = 0.0
        """... and the time in which they did."""
        self.since_ns: int | None = None
        """Start of the time not yet counted: when a request began to wait in the empty queue, or the last one left to
        run. None: no request waits."""

    def waits(self, length: int, now_ns: int) -> None:
        if self.since_ns is None or length <= 1:
            self.since_ns = now_ns

    def served(self, length: int, now_ns: int) -> None:
        if self.since_ns is None:
            return
        self.busy_ns += now_ns - self.since_ns
        self.count += 1
        self.since_ns = now_ns if length else None
        if self.busy_ns > _WINDOW_NS:
            self.busy_ns /= 2
            self.count /= 2

    def rate(self, now_ns: int) -> float | None:
        if self.count < _SEEN_MIN:
            return None
        busy_ns = self.busy_ns + (0 if self.since_ns is None else now_ns - self.since_ns)
        return self.count * _SECOND_NS / max(1.0, busy_ns)


class _Model:
    __slots__ = ("first_token_ns", "interactive", "overall")

    def __init__(self) -> None:
        self.overall = _Drain()
        self.interactive = _Drain()
        """Rate of interactive requests alone: requests of lower classes go after them, so their waits say nothing about
        theirs."""
        self.first_token_ns = 0.0


class DrainRates:
    """Drain rates of one gateway, by model."""

    def __init__(self) -> None:
        self._by_model: dict[ModelName, _Model] = {}

    def _of(self, model: ModelName) -> _Model:
        known = self._by_model.get(model)
        if known is None:
            if len(self._by_model) >= _MODELS_MAX:
                self._by_model.clear()
            known = self._by_model[model] = _Model()
        return known

    def waits(self, waiting: WaitingRequests, request: RequestState, now_ns: int) -> None:
        """Record a request that has arrived, is queued, and could not start at once."""
        model = request.profile.model
        known = self._of(model)
        known.overall.waits(waiting.length(model), now_ns)
        if not request.request_class.service_rank:
            known.interactive.waits(waiting.interactive_length(model), now_ns)

    def served(self, waiting: WaitingRequests, request: RequestState, now_ns: int) -> None:
        """Record a request that waited and starts; it has left the queue."""
        model = request.profile.model
        known = self._by_model.get(model)
        if known is None:
            return
        known.overall.served(waiting.length(model), now_ns)
        if not request.request_class.service_rank:
            known.interactive.served(waiting.interactive_length(model), now_ns)

    def left(self, waiting: WaitingRequests, model: ModelName) -> None:
        """Record that a request of the model ended. While none of its requests waits, no time is counted."""
        known = self._by_model.get(model)
        if known is None:
            return
        if not waiting.length(model):
            known.overall.since_ns = None
        if not waiting.interactive_length(model):
            known.interactive.since_ns = None

    def first_token(self, model: ModelName, took_ns: int) -> None:
        """Record the time from the start of a leg to its first token."""
        known = self._of(model)
        keeps = _KEEPS if known.first_token_ns else 0.0
        known.first_token_ns = keeps * known.first_token_ns + (1 - keeps) * took_ns

    def rate(self, model: ModelName, now_ns: int) -> float | None:
        """Requests of the model a second, over all classes; None: not known yet."""
        known = self._by_model.get(model)
        return None if known is None else known.overall.rate(now_ns)

    def rates(self, now_ns: int) -> dict[ModelName, float]:
        """Rates of the models whose rate is known."""
        found = {model: self.rate(model, now_ns) for model in self._by_model}
        return {model: rate for model, rate in found.items() if rate is not None}

    def clears_ns(self, waiting: WaitingRequests, model: ModelName, now_ns: int) -> int:
        """Time until all requests that wait for the model, and one more, have left; 0: not known."""
        rate = self.rate(model, now_ns)
        return 0 if rate is None else int((waiting.length(model) + 1) * _SECOND_NS / rate)

    def lateness(
        self, waiting: WaitingRequests, request: RequestState, promised_ns: int | None, now_ns: int
    ) -> Lateness | None:
        """Judge a request that has just arrived and has to wait. It is late if its first token would come after the
        objective of its class, or after its own deadline where that comes before its limit of waiting. None: it may be
        in time, as far as is known.

        A request that is next in line waits whatever the rate says: if all were rejected, no rate would ever be counted
        again.
        """
        within_ns = promised_ns
        if request.deadline_ns < request.queue_deadline_ns:
            own_ns = request.deadline_ns - now_ns
            within_ns = own_ns if promised_ns is None else min(promised_ns, own_ns)
        known = self._by_model.get(request.profile.model)
        if within_ns is None or known is None:
            return None
        drain = known.overall if request.request_class.service_rank else known.interactive
        rate = drain.rate(now_ns)
        ahead = 0 if rate is None else waiting.ahead_of(request)
        if rate is None or not ahead:
            return None
        wait_ns = int((ahead + 1) * _SECOND_NS / rate + known.first_token_ns)
        if wait_ns <= within_ns:
            return None
        told = f"its first token would take {wait_ns // 1_000_000} ms: {ahead} are before it, {rate:.3g} get their turn"
        whose = f"{request.profile.service_class} was promised" if within_ns == promised_ns else "its client gives it"
        return Lateness(f"{told} a second; {whose} {within_ns // 1_000_000} ms", wait_ns - within_ns)
