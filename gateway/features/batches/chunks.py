"""Place in an input file before which each line has a result, so that a batch goes on from there. It does no I/O."""

from __future__ import annotations

from collections import deque


class LineChunk:
    """Lines that were read together."""

    __slots__ = ("left", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = 1
        """Lines without a result, and one more until the chunk is read as a whole."""


class LineChunks:
    """Chunks of one file, in order. Behind a line that waits long, those that are done are kept: a few bytes each."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._open: deque[LineChunk] = deque()

    def begin(self, size: int) -> LineChunk:
        """Begin with the next chunk, of so many bytes."""
        self._open.append(chunk := LineChunk(size))
        return chunk

    def done(self, chunk: LineChunk) -> None:
        """Take in that one more of a chunk's lines has its result, or that the chunk is read."""
        chunk.left -= 1
        while self._open and not self._open[0].left:
            self.offset += self._open.popleft().size
