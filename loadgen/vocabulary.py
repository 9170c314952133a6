"""The words of a run, simulated or live: which call a request is made with, how it ended. It decides nothing."""

from __future__ import annotations

from enum import StrEnum


class Api(StrEnum):
    """Which call a request is made with."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Api.CHAT else "/v1/completions"


class RequestEnd(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Refused, broken off or garbled; the record's `detail` says how."""
    UNFINISHED = "unfinished"
    """Still waiting or streaming when the run was over."""
