"""Resume, outside the core: its labels, and words on resumed answers."""

from __future__ import annotations

from typing import ClassVar

from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host
from gateway.features.resume.words import ResumeWords
from mesh.series import EVERY_SERIES, Label


class ResumeExtension(Extension):
    """Explains resumed answers."""

    name = "resume"
    labels: ClassVar = {
        (EVERY_SERIES, "continuable"): Label("Possibility of resuming the rest of the answer.", ("no", "yes")),
    }
    words = ResumeWords()

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing."""
