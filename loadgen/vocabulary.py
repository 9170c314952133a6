"""The words of a run, simulated or live: how a request ended, what a replayed session waits for. It decides nothing."""

from __future__ import annotations

from enum import StrEnum


class RequestEnd(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Refused, broken off or garbled; the record's `detail` says how."""
    UNFINISHED = "unfinished"
    """Still waiting or streaming when the run was over."""


class Pace(StrEnum):
    """What a session's next request waits for."""

    ANSWERS = "answers"
    """The answer that it gets now; then its user thinks as long as recorded."""
    RECORDED = "recorded"
    """The same, but no answer counts as given before the recorded time of one has gone by."""
