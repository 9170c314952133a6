"""Meaning of a peer's outcome of a forward for the leg that forwarded it. This module alone defines it.

A peer that changes its mind refuses: the request goes back to its old place, and no failure is counted. An outcome that
a newer peer sends and this version does not know is read the same way, and so is an internal error of the peer: a
single request that every gateway trips over must not cut the others off from all peers. Once a part of the answer was
sent, the core makes a broken stream of each of these, and counts only a failure against the peer.
"""

from __future__ import annotations

from gateway.core.vocabulary import LegResult, Outcome, RefusalReason

UNKNOWN_REFUSAL = RefusalReason.BUSY
"""Reading of a reason that this version does not know: busy for now."""

_MEANINGS: dict[Outcome | None, tuple[LegResult, RefusalReason | None]] = {
    None: (LegResult.REFUSED, UNKNOWN_REFUSAL),
    Outcome.COMPLETED: (LegResult.COMPLETED, None),
    Outcome.CLIENT_ERROR: (LegResult.CLIENT_ERROR, None),
    Outcome.ABANDONED: (LegResult.FAILED, None),
    Outcome.REJECTED_UNKNOWN_MODEL: (LegResult.REFUSED, RefusalReason.UNKNOWN_MODEL),
    Outcome.REJECTED_RESIDENCY_INGRESS: (LegResult.REFUSED, RefusalReason.RESIDENCY_NOT_ACCEPTED),
    Outcome.REJECTED_RESIDENCY_PROCESSING: (LegResult.REFUSED, RefusalReason.RESIDENCY_STAMP),
    Outcome.REJECTED_QUEUE_FULL: (LegResult.REFUSED, RefusalReason.QUEUE_FULL),
    Outcome.REJECTED_DRAINING: (LegResult.REFUSED, RefusalReason.DRAINING),
    Outcome.REJECTED_TENANT_LIMIT: (LegResult.REFUSED, RefusalReason.BUSY),
    Outcome.REJECTED_DEADLINE: (LegResult.REFUSED, RefusalReason.DEADLINE),
    Outcome.REJECTED_TENANT_CONCURRENCY: (LegResult.REFUSED, RefusalReason.BUSY),
    Outcome.REJECTED_TENANT_REQUEST_RATE: (LegResult.REFUSED, RefusalReason.BUSY),
    Outcome.REJECTED_TENANT_TOKEN_RATE: (LegResult.REFUSED, RefusalReason.BUSY),
    Outcome.REJECTED_UNKNOWN_RESPONSE: (LegResult.REFUSED, RefusalReason.UNKNOWN_RESPONSE),
    Outcome.REJECTED_TOO_LONG: (LegResult.REFUSED, RefusalReason.TOO_LONG),
    Outcome.REJECTED_UNSUPPORTED: (LegResult.REFUSED, RefusalReason.UNKNOWN_MODEL),
    Outcome.EXPIRED_IN_QUEUE: (LegResult.REFUSED, RefusalReason.BUSY),
    Outcome.EXPIRED_RUNNING: (LegResult.FAILED, None),
    Outcome.FAILED_BEFORE_FIRST_BYTE: (LegResult.FAILED, None),
    Outcome.FAILED_MIDSTREAM: (LegResult.FAILED, None),
    Outcome.FAILED_INTERNALLY: (LegResult.REFUSED, RefusalReason.BUSY),
}


def leg_end_of(outcome: Outcome | None, detail: str) -> tuple[LegResult, RefusalReason | None, str]:
    """Result, refusal and detail of a leg whose peer ended the request with this outcome. None: an outcome that this
    version does not know."""
    result, refusal = _MEANINGS[outcome]
    if result is LegResult.FAILED:
        detail = f"it ended as {outcome} there: {detail}"
    return result, refusal, detail
