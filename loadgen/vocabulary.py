"""Terms of a run, simulated or live: the API call of a request, and how a request ended. It decides nothing."""

from __future__ import annotations

from enum import StrEnum


class ApiKind(StrEnum):
    """API call with which a request is made."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is ApiKind.CHAT else "/v1/completions"


class RequestEnd(StrEnum):
    """End of a request, as its client saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Refused, broken off or garbled; the record's `detail` gives the reason."""
    UNFINISHED = "unfinished"
    """Still waiting or streaming when the run ended."""
