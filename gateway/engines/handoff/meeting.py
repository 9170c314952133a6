"""What both legs of an attempt say so that the engines know them for one. Pure: whoever calls draws the chance.

Nothing of it is the client's: two clients may choose the same id, one may use it twice, and an engine that meets an id
anew while it still holds the old one mixes the two up, or stops.
"""

from __future__ import annotations

from hashlib import blake2b

from gateway.core.value import value
from gateway.request.engine_api import REQUEST_ID_HEADER
from gateway.request.legs import NONCE_BYTES, Headers

_ROOM_BITS = 63
"""SGLang's rooms are signed 64-bit numbers."""


@value
class Meeting:
    """One attempt's. A retry meets elsewhere."""

    request_id: str
    """The same in both engines: hexadecimal digits, so that it needs no escape anywhere."""
    transfer_id: str
    """Mooncake's."""
    room: int
    """SGLang's."""

    def in_room_of_rank(self, ranks: int, rank: int) -> int:
        """A room by which SGLang leads a request to that data-parallel rank of the prefill, where it is started with
        `follow_bootstrap_room`."""
        assert 0 <= rank < ranks, (rank, ranks)
        room = self.room - self.room % ranks + rank
        return room if room < 1 << _ROOM_BITS else room - ranks


def meeting(nonce: bytes, attempt: int) -> Meeting:
    """`nonce`: chance, drawn once for a request and never told to anybody; 16 bytes."""
    assert len(nonce) == NONCE_BYTES, "a meeting needs 16 bytes of chance"
    drawn = blake2b(b"%d" % attempt, digest_size=40, key=nonce, person=b"nightside-meet").digest()
    room = int.from_bytes(drawn[32:]) >> (64 - _ROOM_BITS)
    return Meeting(drawn[:16].hex(), f"xfer-{drawn[16:32].hex()}", room)


def leg_headers(headers: Headers, met: Meeting) -> Headers:
    """The client's headers that an engine may see, under the meeting's id in place of the client's."""
    kept = tuple(pair for pair in headers if pair[0].lower() != REQUEST_ID_HEADER)
    return (*kept, (REQUEST_ID_HEADER, met.request_id))
