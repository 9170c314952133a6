"""Similarity of a request's signature to each centroid: the only result of its expert counts that reaches the core.
Values only.

Expert counts reveal the prompt and stay at the edge. The K cosines reveal little, and are still kept out of audit,
explanations and logs.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from gateway.core.vocabulary import Word

UNIT = 32767
"""Packed value of a cosine of 1: cosines are 16-bit integers, so that equal journals hold equal numbers."""
CLUSTERS_MAX = 1024
_SIZE = 2


class SignatureState(Word):
    """State of the expert counts that a prefill worker reported."""

    USED = "used"
    MISSING = "missing"
    """No counts were reported, or this attempt prefilled no prompt."""
    MALFORMED = "malformed"
    """The report is not valid counts, is too large, or has another length than it states."""
    EMPTY = "empty"
    """All counts in the artifact's layers are 0, so the signature has no direction."""
    FOREIGN = "foreign"
    """Counted in another model than the artifact was fitted to, or one of another shape."""
    STALE = "stale"
    """Compared with another artifact than the one in force."""
    UNFITTED = "unfitted"
    """No artifact is in force."""


class Nearness(Struct, frozen=True):
    """Similarity of one prefilled request to the centroids."""

    state: SignatureState
    artifact: str = ""
    """Digest of the artifact that it was compared with."""
    cosines: bytes = b""
    """Cosines to the centroids, in their order: signed 16-bit integers in units of `UNIT`, little-endian."""


def unpack(cosines: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(cosines) // _SIZE}h", cosines)
