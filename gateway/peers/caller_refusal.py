"""Reasons to refuse a gateway that calls."""

from __future__ import annotations

from enum import StrEnum


class CallerRefusal(StrEnum):
    """Reasons to refuse a call for the gateway that makes it."""

    IDENTITY = "identity"
    """The certificate is not valid, or contradicts the claim; or the claim contradicts the peer that is known here."""
    NOT_A_PEER = "not_a_peer"
    """The claim is not contradicted, but no such peer is known here: a gateway that was just added, or removed."""
