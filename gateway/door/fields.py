"""Counts the fields of a large body before it is decoded, so that no body takes long because it has millions of them.

Decoding holds the interpreter until it is done. Counting works in pieces, off the event loop, and looks only for bodies
that are mostly fields; text and numbers in them do not matter.
"""

from __future__ import annotations

import numpy as np

LARGE_BYTES = 1 << 20
"""Smaller bodies are decoded in a few milliseconds, whatever is in them."""
FIELDS_MAX = 10_000
_PIECE_BYTES = 64 * 1024
_BYTES_PER_COLON_MIN = 64
"""Bodies with fewer colons than one in this many bytes decode fast, wherever the colons are."""
_QUOTE, _COMMA, _COLON = b'",:'
_OPENING, _CLOSING = b"{[", b"}]"


def has_too_many_fields(raw: bytes) -> bool:
    """True if the outermost object has more than FIELDS_MAX fields. For invalid JSON either answer may be given:
    decoding stops where it becomes invalid."""
    return _colons(raw) * _BYTES_PER_COLON_MIN > len(raw) and _has_more_commas(raw)


def _colons(raw: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == _COLON))


def _has_more_commas(raw: bytes) -> bool:
    """True if there are too many commas between the fields of the outermost object."""
    depth = commas = 0
    in_string = False
    carried = b""
    for start in range(0, len(raw), _PIECE_BYTES):
        piece = carried + raw[start : start + _PIECE_BYTES]
        carried = b"\\" if _breaks_an_escape(piece) else b""
        seen = np.frombuffer(_without_escapes(piece[: len(piece) - len(carried)]), np.uint8)
        if not len(seen):
            continue
        is_inside = (
            np.cumsum(seen == _QUOTE, dtype=np.uint8) + in_string
        ) & 1  # the parity stays right where the count wraps around
        is_outside = is_inside == 0
        steps = np.isin(seen, list(_OPENING)).astype(np.int32) - np.isin(seen, list(_CLOSING))
        depths = depth + np.cumsum(steps * is_outside, dtype=np.int32)
        commas += int(np.count_nonzero((seen == _COMMA) & is_outside & (depths == 1)))
        if commas >= FIELDS_MAX:
            return True
        depth, in_string = int(depths[-1]), bool(is_inside[-1])
    return False


def _breaks_an_escape(piece: bytes) -> bool:
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1


def _without_escapes(piece: bytes) -> bytes:
    """Replace escapes by blanks of the same length, so that each remaining quote begins or ends a string."""
    return piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
