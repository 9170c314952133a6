"""Tells which calls fail because of what a fault does to the client itself, so that no part of the mesh could have
saved them. Pure.

It must never excuse a call of another region, nor one that the mesh could still answer.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.faults import WanFault

_SECOND_NS = 1_000_000_000
_TTL_S = 10.0
"""Time for which clients and name servers keep a wrong answer after its end."""
UNDER_WAY = "its answer was under way through the gateway that stopped, and HTTP cannot carry it on"
NO_NAME = "its client had to ask the name server at fault"


@dataclass(frozen=True, slots=True)
class FaultTimes:
    """Times of a fault on the clock of its calls."""

    began_ns: int
    struck_ns: int
    """All that the fault does at its beginning has been done."""
    healed_ns: int


def excuse_of(call: SdkCall, fault: WanFault, times: FaultTimes, own: Container[str]) -> str | None:
    """Reason why the failed call could not be answered; None: the mesh should have answered it. `own`: gateways of the
    region that the fault strikes."""
    if call.region != fault.struck or (call.ended_ns is not None and call.ended_ns < times.began_ns):
        return None
    if fault.cuts_answers and call.gateway in own and call.first_ns is not None:
        return UNDER_WAY if call.first_ns <= times.struck_ns else None
    if fault.names is not None and not (call.gateway or call.is_refused):
        ends_ns = times.healed_ns + round(_TTL_S * _SECOND_NS)
        return NO_NAME if call.left_ns <= ends_ns else None
    return None
