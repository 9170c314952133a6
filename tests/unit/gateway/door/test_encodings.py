from __future__ import annotations

import gzip
import zlib

import pytest

from gateway.door import errors
from gateway.door.encodings import TAKEN, Inflater, encoding_of
from gateway.door.errors import ClientFault
from gateway.http1.server import Headers

TEXT = b'{"model": "llama", "messages": "' + b"x" * 5000 + b'"}'
RAW_DEFLATE = zlib.compressobj(wbits=-zlib.MAX_WBITS)
EACH = [
    pytest.param("gzip", gzip.compress(TEXT), id="gzip"),
    pytest.param("deflate", zlib.compress(TEXT), id="deflate-with-its-head"),
    pytest.param("deflate", RAW_DEFLATE.compress(TEXT) + RAW_DEFLATE.flush(), id="deflate-alone"),
]


def headers_of(values: list[str]) -> Headers:
    headers = Headers()
    for value in values:
        if "content-encoding" in headers:
            headers.repeat("content-encoding", value)
        else:
            headers["content-encoding"] = value
    return headers


def inflated(encoding: str, pieces: list[bytes], step_bytes: int = 64) -> bytes:
    inflater, out = Inflater(encoding), bytearray()
    for piece in pieces:
        inflater.feed(piece)
        while not inflater.is_dry:
            step = inflater.step(step_bytes)
            assert len(step) <= step_bytes
            out += step
    inflater.close()
    return bytes(out)


def fault_of(encoding: str, pieces: list[bytes]) -> ClientFault:
    with pytest.raises(ClientFault) as caught:
        inflated(encoding, pieces)
    assert caught.value.kind is errors.INVALID_ENCODING
    return caught.value


@pytest.mark.parametrize(("encoding", "data"), EACH)
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_it_comes_out_as_it_was_however_it_is_cut(encoding: str, data: bytes, size: int) -> None:
    assert inflated(encoding, [data[at : at + size] for at in range(0, len(data), size)]) == TEXT


@pytest.mark.parametrize("encoding", TAKEN)
def test_no_step_is_larger_than_asked_for_whatever_is_packed_into_it(encoding: str) -> None:
    bomb = gzip.compress(bytes(10_000_000)) if encoding == "gzip" else zlib.compress(bytes(10_000_000))
    inflater = Inflater(encoding)
    inflater.feed(bomb)
    for _ in range(100):
        assert len(inflater.step(1000)) <= 1000
    assert not inflater.is_dry


@pytest.mark.parametrize(("encoding", "data"), EACH)
def test_what_breaks_off_is_no_body(encoding: str, data: bytes) -> None:
    assert "is truncated" in fault_of(encoding, [data[:-3]]).detail
    assert "is truncated" in fault_of(encoding, [data[:1]]).detail
    assert "is truncated" in fault_of(encoding, []).detail


@pytest.mark.parametrize(("encoding", "data"), EACH)
def test_nothing_may_follow_its_end(encoding: str, data: bytes) -> None:
    assert "follows" in fault_of(encoding, [data + b"x"]).detail
    assert "follows" in fault_of(encoding, [data, b"x"]).detail
    assert "follows" in fault_of(encoding, [data + data]).detail


@pytest.mark.parametrize("encoding", TAKEN)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(TEXT, id="text"),
        pytest.param(b"\x1f\x8b\x08" + b"\xff" * 20, id="a-head-of-gzip"),
        pytest.param(b"\x78\x9c" + b"\xff" * 20, id="a-head-of-zlib"),
        pytest.param(b"\x00" * 20, id="zeros"),
    ],
)
def test_what_is_something_else_is_told_so(encoding: str, data: bytes) -> None:
    assert f"could not be read as {encoding}" in fault_of(encoding, [data]).detail


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([""], None),
        (["identity"], None),
        (["gzip"], "gzip"),
        (["GZIP"], "gzip"),
        (["x-gzip"], "gzip"),
        (["identity, deflate"], "deflate"),
    ],
)
def test_what_is_taken(values: list[str], expected: str | None) -> None:
    assert encoding_of(headers_of(values)) == expected


@pytest.mark.parametrize("values", [["br"], ["zstd"], ["gzip, gzip"], ["gzip", "deflate"], ["compress"], ["\u20ac"]])
def test_whatever_else_is_told_what_is(values: list[str]) -> None:
    with pytest.raises(ClientFault) as caught:
        encoding_of(headers_of(values))
    assert caught.value.kind is errors.UNSUPPORTED_ENCODING
    assert values[0] in caught.value.detail
    assert all(each in caught.value.detail for each in TAKEN)
    assert errors.error_headers(caught.value.kind)["accept-encoding"] == ", ".join(TAKEN)
