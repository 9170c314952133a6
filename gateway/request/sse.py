"""Server-sent events: takes pieces of any size and returns whole events. It changes no byte and does not interpret
events.

Only whole events are released, so that a stream which breaks never leaves half an event behind. The exception is an
event larger than may be held: it passes in parts, and its end is still found.

Lines end with LF or CRLF. Lines that end with CR alone, which no known engine writes, are found within an event, but
their blank line ends none.
"""

from __future__ import annotations

import re

CARRIAGE_RETURN = ord("\r")
_BOUNDARY = re.compile(rb"\n\r?\n")
_BOUNDARY_REST_MAX = 2
"""Most bytes of a boundary that may have arrived without its last one."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventFramer:
    """Framer of one stream: gathers pieces until they complete events."""

    __slots__ = ("_event_bytes_max", "_searched", "is_crossing", "pending")

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max
        self._searched = 0
        self.pending = bytearray()
        """Bytes of an event whose end has not arrived."""
        self.is_crossing = False
        """True inside an event too large to be held, whose beginning has been released."""

    def take(self, data: bytes) -> bytes:
        """Return what may be sent with this piece: whole events, or a part of one while `is_crossing`; empty for
        nothing yet.

        A piece after such parts begins with the rest of their event.
        """
        pending = self.pending
        pending += data
        end = _last_boundary(pending, self._searched)
        if end == 0:
            return self._release_oversized()
        block = bytes(pending[:end])
        del pending[:end]
        self._searched = 0
        self.is_crossing = False
        return block

    def rest(self) -> bytes:
        """Return what is left at the end of the stream: an event that lacks its blank line."""
        rest = bytes(self.pending)
        self.pending.clear()
        return rest

    def _release_oversized(self) -> bytes:
        size = len(self.pending)
        if not self.is_crossing and size <= self._event_bytes_max:
            self._searched = max(0, size - _BOUNDARY_REST_MAX)
            return b""
        end = self.pending[-_BOUNDARY_REST_MAX:]
        body = bytes(self.pending[: size - len(end) + len(end.rstrip(b"\r\n"))])
        del self.pending[: len(body)]
        self._searched = 0
        self.is_crossing = True
        return body


def events(block: bytes) -> list[bytes]:
    """Split a block into events, each with its blank line."""
    found: list[bytes] = []
    start, size, has_carriages = 0, len(block), CARRIAGE_RETURN in block
    while start < size:
        end = _first_boundary(block, start) if has_carriages else block.find(b"\n\n", start) + 2
        if end < 2:
            end = size  # the last event lacks its blank line
        found.append(block[start:end])
        start = end
    return found


def fields(event: bytes) -> tuple[bytes, bytes | None]:
    """Return the event's name and its data; None for a comment. A byte order mark, which a stream may begin with, is
    passed over."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and CARRIAGE_RETURN not in event:
        return b"", event[5:].strip()  # most events are one line of data and an empty one
    name = b""
    data: list[bytes] = []
    for line in event.removeprefix(_BYTE_ORDER_MARK).splitlines():
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return name, b"\n".join(data) if data else None


def _last_boundary(data: bytearray, start: int) -> int:
    """End of the last whole event; 0 if there is none."""
    plain = data.rfind(b"\n\n", start)
    carriage = data.rfind(b"\n\r\n", start)
    if carriage < 0:
        return 0 if plain < 0 else plain + 2
    return max(plain + 2, carriage + 3)


def _first_boundary(block: bytes, start: int) -> int:
    """End of the first event; 0 if it lacks its blank line. Reads no byte behind it."""
    boundary = _BOUNDARY.search(block, start)
    return 0 if boundary is None else boundary.end()
