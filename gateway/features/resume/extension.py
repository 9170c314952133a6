"""Resume, outside the core: its labels."""

from __future__ import annotations

from typing import ClassVar

from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host
from mesh.series import EVERY_SERIES, Label


class ResumeExtension(Extension):
    """Describes the label of resumed answers."""

    name = "resume"
    labels: ClassVar = {
        (EVERY_SERIES, "continuable"): Label("Possibility of resuming the rest of the answer.", ("no", "yes")),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing."""
