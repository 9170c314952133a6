"""Transports without sockets: what a protocol writes is kept, and a test is the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

CLIENT = ("192.0.2.1", 4711)


class Line(asyncio.Transport):
    """One end of a connection, in the hands of a protocol. It refuses to be used after it was closed."""

    def __init__(self, *, peername: object = CLIENT, can_write_eof: bool = True) -> None:
        super().__init__({"peername": peername})
        self.sent = bytearray()
        """Bytes that the protocol has written."""
        self.writes = 0
        self.has_written_eof = False
        self.is_closed = False
        self.is_cut = False
        """True if the protocol has aborted the connection."""
        self.is_paused = False
        """True while the protocol does not read."""
        self.is_stuck = False
        """True while the other end reads nothing, so that the buffer fills."""
        self._protocol: asyncio.Protocol | None = None
        self._can_write_eof = can_write_eof
        self._buffered = 0
        self._high = 1 << 16
        self._is_full = False
        self._is_lost = False

    def connect(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # The other end

    def say(self, *pieces: bytes) -> None:
        """Let these bytes arrive one after the other, as long as the protocol reads."""
        for piece in pieces:
            if self.is_closing() or not piece:
                continue
            assert not self.is_paused, "the protocol does not read"
            self.protocol.data_received(piece)

    def taken(self) -> bytes:
        """Take what was written since the last call."""
        data, self.sent = bytes(self.sent), bytearray()
        return data

    def take_all(self) -> None:
        """Empty a buffer that was stuck."""
        self.is_stuck = False
        self._buffered = 0
        if self._is_full:
            self._is_full = False
            self.protocol.resume_writing()

    def lose(self, error: Exception | None = None) -> None:
        """Let the connection end, once."""
        if not self._is_lost:
            self._is_lost = self.is_closed = True
            self.protocol.connection_lost(error)

    def half_close(self) -> None:
        if not self.protocol.eof_received():
            self.close()
            self.lose()

    @property
    def protocol(self) -> asyncio.Protocol:
        assert self._protocol is not None, "it was connected"
        return self._protocol

    # The protocol's end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closing(), f"written after the end: {bytes(data)!r}"
        assert not self.has_written_eof, "written after the end of writing"
        self.writes += 1
        self.sent += data
        if self.is_stuck:
            self._buffered += len(data)
        if self._buffered > self._high and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del low
        self._high = self._high if high is None else high

    def can_write_eof(self) -> bool:
        return self._can_write_eof

    def write_eof(self) -> None:
        assert self._can_write_eof
        self.has_written_eof = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_cut = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
