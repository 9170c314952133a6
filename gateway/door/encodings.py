"""Decodes bodies with a `content-encoding` of gzip or deflate, in steps, none of which is large.

No limit on the output is decided here; the caller counts the output of the steps, and stops.
"""

from __future__ import annotations

import zlib

from gateway.door.errors import INVALID_ENCODING, UNSUPPORTED_ENCODING, ClientFault
from gateway.http1.server import Headers

TAKEN = ("gzip", "deflate")
_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_GZIP_BITS = 16 + zlib.MAX_WBITS
_ZLIB_HEADER_BYTES = 2
_DEFLATE_METHOD = 8
_WHAT_IS_TAKEN = f"this gateway supports {' and '.join(TAKEN)}, one at a time, or none"


def encoding_of(headers: Headers) -> str | None:
    """The body's content encoding; None if it has none. Raises ClientFault."""
    if "content-encoding" not in headers:
        return None
    values = headers.getall("content-encoding")
    named = [name for value in values for name in (part.strip().lower() for part in value.split(",")) if name]
    codings = [name for name in named if name != "identity"]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _NAMES:
        said = ", ".join(codings)[:100]
        raise ClientFault(UNSUPPORTED_ENCODING, f"content-encoding {said!r}: {_WHAT_IS_TAKEN}")
    return _NAMES[codings[0]]


class Inflater:
    """Decodes one body: `feed` it each piece, take a `step` at a time until it `is_dry`, and `close` it at the end."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder: zlib._Decompress | None = None
        """Created with the first step: it takes 40 KB, and many bodies may wait for theirs."""
        self._pending = b""
        self._is_over = False
        self.is_dry = True
        """True if no output is left before more input is fed."""

    def feed(self, data: bytes) -> None:
        """Add encoded bytes. Raises ClientFault for bytes behind the end of the encoded body."""
        assert self.is_dry, "what went in before is taken out first"
        self._pending += data
        is_begun = self._decoder is not None or self._encoding == "gzip" or len(self._pending) >= _ZLIB_HEADER_BYTES
        self.is_dry = not (self._pending and is_begun)

    def step(self, bytes_max: int) -> bytes:
        """The next output, at most `bytes_max` bytes. Raises ClientFault for input that is not in this encoding."""
        if self._decoder is None:
            self._decoder = self._begin()
        decoder = self._decoder
        if self._is_over:
            raise self._fault("data follows its end")
        try:
            data = decoder.decompress(self._pending, bytes_max)
        except zlib.error:
            raise self._fault("its data is corrupt") from None
        self._pending = decoder.unconsumed_tail
        if decoder.unused_data:
            raise self._fault("data follows its end")
        self._is_over = decoder.eof
        self.is_dry = self._is_over or (not self._pending and len(data) < bytes_max)
        return data

    def _begin(self) -> zlib._Decompress:
        if self._encoding == "gzip":
            return zlib.decompressobj(_GZIP_BITS)
        return zlib.decompressobj(zlib.MAX_WBITS if _has_zlib_header(self._pending) else -zlib.MAX_WBITS)

    def close(self) -> None:
        """End the body. Raises ClientFault if it is incomplete."""
        if not self._is_over:
            raise self._fault("it is truncated")

    def _fault(self, why: str) -> ClientFault:
        return ClientFault(INVALID_ENCODING, f"the body could not be read as {self._encoding}: {why}")


def _has_zlib_header(data: bytes) -> bool:
    """True for zlib's format, which `deflate` means (RFC 9110, 8.4.1.2); some senders omit its header."""
    return data[0] & 0x0F == _DEFLATE_METHOD and int.from_bytes(data[:_ZLIB_HEADER_BYTES], "big") % 31 == 0
