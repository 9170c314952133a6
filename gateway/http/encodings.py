"""Undoes what `content-encoding` says was done to a body: gzip and deflate, in steps, none of which is large.

Nothing here decides how much may come out; whoever takes the steps counts them, and stops.
"""

from __future__ import annotations

import zlib

from multidict import MultiMapping

from gateway.http.errors import INVALID_ENCODING, UNSUPPORTED_ENCODING, ClientFault

TAKEN = ("gzip", "deflate")
_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_GZIP_BITS = 16 + zlib.MAX_WBITS
_ZLIB_HEADER_BYTES = 2
_DEFLATE_METHOD = 8
_WHAT_IS_TAKEN = f"this gateway takes {' and '.join(TAKEN)}, one of them at a time, or none"


def encoding_of(headers: MultiMapping[str]) -> str | None:
    """What `content-encoding` says; None where the body is as it is. Raises ClientFault."""
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
        """Made with the first step: it takes 40 KB, and many bodies may wait for theirs."""
        self._pending = b""
        self._is_over = False
        self.is_dry = True
        """Nothing more comes out before something more goes in."""

    def feed(self, data: bytes) -> None:
        """Raises ClientFault for what follows the end of the encoded body."""
        assert self.is_dry, "what went in before is taken out first"
        self._pending += data
        is_begun = self._decoder is not None or self._encoding == "gzip" or len(self._pending) >= _ZLIB_HEADER_BYTES
        self.is_dry = not (self._pending and is_begun)

    def step(self, bytes_max: int) -> bytes:
        """What comes next, at most so much. Raises ClientFault for what is not in this encoding."""
        if self._decoder is None:
            self._decoder = self._begin()
        decoder = self._decoder
        if self._is_over:
            raise self._fault("something follows its end")
        try:
            data = decoder.decompress(self._pending, bytes_max)
        except zlib.error:
            raise self._fault("it is damaged, or something else") from None
        self._pending = decoder.unconsumed_tail
        if decoder.unused_data:
            raise self._fault("something follows its end")
        self._is_over = decoder.eof
        self.is_dry = self._is_over or (not self._pending and len(data) < bytes_max)
        return data

    def _begin(self) -> zlib._Decompress:
        if self._encoding == "gzip":
            return zlib.decompressobj(_GZIP_BITS)
        return zlib.decompressobj(zlib.MAX_WBITS if _has_zlib_header(self._pending) else -zlib.MAX_WBITS)

    def close(self) -> None:
        """All of it has come. Raises ClientFault where it breaks off."""
        if not self._is_over:
            raise self._fault("it breaks off before its end")

    def _fault(self, why: str) -> ClientFault:
        return ClientFault(INVALID_ENCODING, f"the body could not be read as {self._encoding}: {why}")


def _has_zlib_header(data: bytes) -> bool:
    """`deflate` means zlib's format (RFC 9110, 8.4.1.2); some senders leave its header away."""
    return data[0] & 0x0F == _DEFLATE_METHOD and int.from_bytes(data[:_ZLIB_HEADER_BYTES], "big") % 31 == 0
