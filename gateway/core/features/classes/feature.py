"""Service classes: how long a request of each class waits, what it is promised, and when it yields no more.

The kernel itself queues requests by the class in their profile, and gives those that yield only what has room to spare.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.classes.config import ClassesConfig
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.events import ForwardArrived, RequestArrived
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import RequestState
from gateway.core.vocabulary import RequestProfile, ServiceClass

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_RECEIVERS_SHARE: Final = 10
"""Divisor of the longest wait of a request that was forwarded here, once it has begun."""


class Classes(Feature):
    """Applies the settings of the classes. The feature is on whatever the config says: a request names its class
    itself."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
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

    def admitted(self, request: RequestState, event: RequestArrived | ForwardArrived, now_ns: int, /) -> None:
        """Set how long the request may wait, and when it yields no more."""
        service_class = request.request_class.service_class
        if service_class is not _INTERACTIVE:
            request.queue_deadline_ns = now_ns + self._config.wait_max_ns(service_class, 0)
            request.look_ns = self._config.promotion_at(event.profile, now_ns)
            if not self._core.has_yielding:
                self._core.has_yielding = True
                self._core.features_changed()

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

    def promised_ns(self, request: RequestState, /) -> int | None:
        return self._first_token_slos_ns.get(request.profile.service_class)

    def queue_share(self, profile: RequestProfile, /) -> float:
        return self._config.queue_share(profile.service_class)
