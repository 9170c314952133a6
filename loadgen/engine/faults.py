"""Faults that an emulated engine can be told to inject, for tests of the gateway in front of it. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class FaultMode(StrEnum):
    """Kind of fault. Unless stated otherwise, a mode affects requests for tokens, while probes are answered
    normally."""

    NONE = "none"
    REFUSE = "refuse"
    """Every connection is reset before an answer, probes included. Only `/faults` still answers."""
    HANG_BEFORE_HEADERS = "hang_before_headers"
    HANG_AFTER_HEADERS = "hang_after_headers"
    DIE_MIDSTREAM = "die_midstream"
    """The connection is reset after `after_tokens` tokens."""
    ERROR_500 = "error_500"
    ERROR_503 = "error_503"
    ERROR_EVENT_FIRST = "error_event_first"
    """Status 200, then an error event in place of the first token."""
    EMPTY_STREAM = "empty_stream"
    """Status 200, then only the end mark."""
    ABORT_MIDSTREAM = "abort_midstream"
    """The stream ends after `after_tokens` tokens with finish reason `abort`, as at a stopping engine."""
    RECOMPUTED_MIDSTREAM = "recomputed_midstream"
    """The answer ends after `after_tokens` tokens as vllm-ascend ends one that it has no room left for: finish reason
    `stop`, stop reason `recomputed`."""
    GARBAGE_METRICS = "garbage_metrics"
    SLOW_METRICS = "slow_metrics"
    """`/metrics` answers after `delay_s`."""


class EngineFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /faults`; it replaces the fault before it."""

    mode: FaultMode = FaultMode.NONE
    after_tokens: int = 3
    delay_s: float = 30.0
    times: int | None = None
    """Number of requests to hit before the fault ends. None: until the next order."""


GENERATION_FAULTS = (
    FaultMode.HANG_BEFORE_HEADERS,
    FaultMode.HANG_AFTER_HEADERS,
    FaultMode.DIE_MIDSTREAM,
    FaultMode.ERROR_500,
    FaultMode.ERROR_503,
    FaultMode.ERROR_EVENT_FIRST,
    FaultMode.EMPTY_STREAM,
    FaultMode.ABORT_MIDSTREAM,
    FaultMode.RECOMPUTED_MIDSTREAM,
)
"""Modes that affect requests for tokens."""


@dataclass(slots=True)
class FaultSwitch:
    """Fault in force, and the number of requests it has hit."""

    fault: EngineFault = field(default_factory=EngineFault)
    _strikes: int = 0

    def turn_to(self, fault: EngineFault) -> None:
        self.fault = fault
        self._strikes = 0

    def strike(self, *modes: FaultMode) -> EngineFault | None:
        """Return the fault in force if it is one of these modes, and count a hit; otherwise None."""
        if self.fault.mode not in modes:
            return None
        if self.fault.times is not None and self._strikes >= self.fault.times:
            return None
        self._strikes += 1
        return self.fault
