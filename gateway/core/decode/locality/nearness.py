"""What is left of a request's expert counts once they have met an artifact: how similar its signature is to each
centroid. It is all that the core is told of them. Values, and nothing else.

Counts tell of a prompt: they stay at the edge. K cosines do so hardly, and are kept out of audit, explanations and logs
all the same.
"""

from __future__ import annotations

import struct

from gateway.core.value import value
from gateway.core.vocabulary import Word

UNIT = 32767
"""A cosine of 1, as cosines are packed: 16 bits each, so that equal journals hold equal numbers."""
CLUSTERS_MAX = 1024
_SIZE = 2


class SignatureState(Word):
    """What became of what a prefill worker said of its experts."""

    USED = "used"
    MISSING = "missing"
    """It said nothing; or this attempt read no prompt."""
    MALFORMED = "malformed"
    """What it said is no counts, too large, or of another length than it says."""
    EMPTY = "empty"
    """Nothing that the artifact looks at was counted: there is no direction in it."""
    FOREIGN = "foreign"
    """Counted in another model, or in one of another shape, than the artifact was fitted to."""
    STALE = "stale"
    """Compared with another artifact than is in force by now."""
    UNFITTED = "unfitted"
    """No artifact is in force."""


@value
class Nearness:
    """Of one request that has been read."""

    state: SignatureState
    artifact: str = ""
    """Digest of the artifact that it was compared with."""
    cosines: bytes = b""
    """To each of its centroids, in their order: signed 16-bit numbers in units of `UNIT`, the lower byte first."""


def unpack(cosines: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(cosines) // _SIZE}h", cosines)
