"""Service classes: how long a request of each class waits, what it is promised, and when it yields no more.

The kernel itself queues requests by the class in their profile, and gives those that yield only what has room to spare:
an engine that reads no prompt. The end of reading a prompt shows in the first token; of an answer in one piece it is
estimated, and looked for then rather than at the next probe while further requests wait.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.classes.config import ClassesConfig
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import ForwardArrived, RequestArrived
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import LegState, RequestState
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import RequestProfile, ServiceClass

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_TIMER: Final = "classes"
_RECEIVERS_SHARE: Final = 10
"""Divisor of the longest wait of a request that was forwarded here, once it has begun."""


class Classes(Feature):
    """Applies the settings of the classes. The feature is on whatever the config says: a request names its class
    itself."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._timer = Timer(TimerKind.FEATURE, _TIMER)
        self._reading: list[tuple[int, int, ReplicaState]] = []
        """Heap of replicas that read prompts of requests that yield, by the time at which each is looked at; the number
        in between tells equal times apart."""
        self._readings = 0
        self._set(ClassesConfig())

    def is_on(self) -> bool:
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._set(all_of(config).classes)

    def _set(self, config: ClassesConfig) -> None:
        self._config = config
        slos = ((each, config.first_token_ns(each)) for each in ServiceClass)
        self._first_token_slos_ns = {each: slo_ns for each, slo_ns in slos if slo_ns is not None}
        self._core.placer.configure_classes(config.batch.free_share, self._first_token_slos_ns)

    def admitted(self, request: RequestState, event: RequestArrived | ForwardArrived, now_ns: int, /) -> None:  # noqa: ARG002
        """Set how long the request may wait, and when it yields no more."""
        service_class = request.request_class.service_class
        if service_class is not _INTERACTIVE:
            request.queue_deadline_ns = now_ns + self._config.wait_max_ns(service_class, 0)
            request.look_ns = self._config.promotion_at(service_class, now_ns)

    def wait_max_ns(self, request: RequestState, /) -> int | None:
        """Longest time that a request of a class that yields may wait for its next attempt. A forwarded one waits only
        briefly here: its origin can choose among all regions."""
        service_class = request.request_class.service_class
        if service_class is _INTERACTIVE:
            return None
        whole_ns = self._config.wait_max_ns(service_class, 0)
        return whole_ns if request.origin_gateway_id is None else whole_ns // _RECEIVERS_SHARE

    def waited(self, request: RequestState, now_ns: int, /) -> None:  # noqa: ARG002
        """Serve the request as interactive from here on: it has yielded for long enough."""
        self._core.stop_waiting(request)
        request.request_class = replace(request.request_class, service_class=_INTERACTIVE)
        self._core.start_waiting(request)

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:  # noqa: ARG002
        """Look at the replica again once it is taken to have read the prompt, if another request waits for that."""
        state = leg.state
        if request.request_class.service_class is _INTERACTIVE or not self._core.waiting.count:
            return
        if isinstance(state, ReplicaState):
            read_ns = state.read_from_ns.get((request.request_id, leg.attempt, leg.number))
            if read_ns is not None:
                self._readings += 1
                heapq.heappush(self._reading, (read_ns, self._readings, state))
                self._core.timers.set(self._timer, self._reading[0][0])

    def wake(self, timer: str, now_ns: int, /) -> None:
        """Take the prompts that are due to be read; placing follows."""
        if timer != _TIMER:
            return
        while self._reading and self._reading[0][0] <= now_ns:
            state = heapq.heappop(self._reading)[2]
            if state.listed:
                self._core.replicas.take_as_read(state, now_ns)
        if self._reading:
            self._core.timers.set(self._timer, self._reading[0][0])

    def promised_ns(self, request: RequestState, /) -> int | None:
        return self._first_token_slos_ns.get(request.profile.service_class)

    def queue_share(self, profile: RequestProfile, /) -> float:
        return self._config.queue_share(profile.service_class)
