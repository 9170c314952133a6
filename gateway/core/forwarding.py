"""What a peer's last word about a forward means for the leg that forwarded it. The only place that says so.

A change of mind is a refusal: the request goes back to its old place, and nobody has failed. So is a word that a newer
peer says and we do not know, and an error of the peer's own making: one request that every gateway stumbles over must
not close the way to all of them for others. Once something of the answer has gone out, the core makes of each a stream
that broke off, and holds only a failure against the peer.
"""

from __future__ import annotations

from gateway.core.vocabulary import LegResult, Outcome, RefusalReason

UNKNOWN_REFUSAL = RefusalReason.BUSY
"""How a reason is read that we do not know: not now."""

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
    """How a leg ends whose peer ended the request like this, and the detail to tell with it. None: by a word that we do
    not know."""
    result, refusal = _MEANINGS[outcome]
    if result is LegResult.FAILED:
        detail = f"it ended as {outcome} there: {detail}"
    return result, refusal, detail
