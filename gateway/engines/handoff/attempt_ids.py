"""Computes the ids that both legs of an attempt carry, so that the engines match them. Pure: the caller supplies the
random bytes.

None of them is the client's: two clients may choose the same id, one may use it twice, and an engine that is given an
id which it still holds mixes the two requests up, or stops.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from gateway.request.engine_api import REQUEST_ID_HEADER
from gateway.request.legs import NONCE_BYTES, Headers

_ROOM_BITS = 63
"""Bits of a room: SGLang's rooms are signed 64-bit numbers."""


class AttemptIds(Struct, frozen=True):
    """Ids of one attempt. A retry has others."""

    request_id: str
    """Request id, the same in both engines: hexadecimal digits, which need no escape anywhere."""
    transfer_id: str
    """Transfer id for Mooncake."""
    room: int
    """Room for SGLang."""

    def in_room_of_rank(self, ranks: int, rank: int) -> int:
        """Room by which SGLang, started with `follow_bootstrap_room`, routes a request to that data-parallel rank of
        the prefill worker."""
        assert 0 <= rank < ranks, (rank, ranks)
        room = self.room - self.room % ranks + rank
        return room if room < 1 << _ROOM_BITS else room - ranks


def attempt_ids(nonce: bytes, attempt: int) -> AttemptIds:
    """Derive the ids of an attempt. `nonce`: 16 random bytes, drawn once for a request and never sent anywhere."""
    assert len(nonce) == NONCE_BYTES, "a meeting needs 16 bytes of chance"
    drawn = blake2b(b"%d" % attempt, digest_size=40, key=nonce, person=b"nightside-meet").digest()
    room = int.from_bytes(drawn[32:]) >> (64 - _ROOM_BITS)
    return AttemptIds(drawn[:16].hex(), f"xfer-{drawn[16:32].hex()}", room)


def leg_headers(headers: Headers, met: AttemptIds) -> Headers:
    """Client's headers that an engine may see, with the meeting's request id in place of the client's."""
    kept = tuple(pair for pair in headers if pair[0].lower() != REQUEST_ID_HEADER)
    return (*kept, (REQUEST_ID_HEADER, met.request_id))
