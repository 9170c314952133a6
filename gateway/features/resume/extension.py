"""Resume, outside the core: its series, and the transcripts of answers that may break."""

from __future__ import annotations

from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.core.gateway_core import GatewayCore
from gateway.features.extension import Extension, Host
from gateway.features.resume.continuation import keep_answer
from gateway.features.resume.metrics import ResumeMetrics
from mesh.series import EVERY_SERIES, Label


class ResumeExtension(Extension):
    """Keeps what clients have been sent of answers that may break, and counts those that broke."""

    name = "resume"
    labels: ClassVar = {
        (EVERY_SERIES, "continuable"): Label("Possibility of resuming the rest of the answer.", ("no", "yes")),
    }
    keep_answer = staticmethod(keep_answer)

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        host.finished.hand_to(ResumeMetrics(host.metrics.registry).on_finished)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        ResumeMetrics(registry)
