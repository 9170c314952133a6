from __future__ import annotations

from gateway.features.batches.chunks import LineChunks


def test_a_batch_goes_on_before_the_first_line_without_a_result() -> None:
    chunks = LineChunks(100)
    first, second = chunks.begin(10), chunks.begin(20)
    first.left += 1
    for each in (first, second):
        chunks.done(each)
    assert chunks.offset == 100, "a line of the first has no result"
    chunks.done(first)
    assert chunks.offset == 130


def test_a_chunk_that_is_being_read_is_not_done() -> None:
    chunks = LineChunks(0)
    chunk = chunks.begin(10)
    chunk.left += 1
    chunks.done(chunk)
    assert chunks.offset == 0
    chunks.done(chunk)
    assert chunks.offset == 10
