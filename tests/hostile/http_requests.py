"""Malformed and unusual requests to a gateway's port, and the expected answers: one case per line.

Each is sent in one piece over a connection of its own, and the answers are read until the gateway closes. `answers` are
the statuses of all answers, in order; `asked` counts the requests that reach the engine, which request smuggling would
raise. No case may make a target look broken.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass

BODY = b'{"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
_START = "POST /v1/chat/completions HTTP/1.1"
_CLOSE = "connection: close"
_LENGTH = f"content-length: {len(BODY)}"
_CHUNKED = "transfer-encoding: chunked"


@dataclass(frozen=True, slots=True)
class HttpCase:
    name: str
    raw: bytes
    answers: tuple[int, ...]
    asked: int = 0
    closes: bool = False
    """The client closes its sending side after the last byte, so that an incomplete request stays incomplete."""
    leaves: bool = False
    """The client leaves after the answer instead of waiting for the gateway to close."""
    contains: bytes = b""
    """Bytes that the answers must contain."""
    at_engine: bytes = b""
    """Bytes that the header lines of the engine's request must contain."""
    not_at_engine: bytes = b""
    """Bytes that the header lines of the engine's request must not contain."""


def request(*headers: str | bytes, start: str | bytes = _START, body: bytes = BODY, host: str = "host: x") -> bytes:
    """Serialise a request. Text is encoded as Latin-1, so that every byte can be written."""
    lines = [_bytes(line) for line in (start, host, *headers) if line]
    return b"\r\n".join([*lines, b"", b""]) + body


def chat(*headers: str | bytes, start: str | bytes = _START) -> bytes:
    """A valid request with further headers, or another start line."""
    return request(_LENGTH, _CLOSE, *headers, start=start)


def framed(*headers: str | bytes, body: bytes = BODY) -> bytes:
    """A request whose length is given by these headers alone."""
    return request(_CLOSE, *headers, body=body)


def chunked(body: bytes) -> bytes:
    return framed(_CHUNKED, body=body)


def get(path: str | bytes, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    return request(_CLOSE, *headers, start=b"%b %b HTTP/1.1" % (_bytes(method), _bytes(path)), body=body)


def encoded(name: str, body: bytes) -> bytes:
    return framed(f"content-encoding: {name}", f"content-length: {len(body)}", body=body)


def _bytes(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode("latin-1")


_SIZE = b"%x" % len(BODY)
_ONE_CHUNK = _SIZE + b"\r\n" + BODY + b"\r\n"
_INNER = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + _LENGTH.encode() + b"\r\n\r\n" + BODY
_KEPT = request(_LENGTH)
"""A request after which the connection stays open."""
_BOMB = gzip.compress(b'{"model": "llama", "pad": "' + b"x" * (8 << 20) + b'"}')

# fmt: off
HTTP_CASES = (
    # Ends of bodies, on which two servers may disagree (request smuggling)
    HttpCase("length and chunked", framed(_LENGTH, _CHUNKED), (400,)),
    HttpCase("chunked and length", framed(_CHUNKED, _LENGTH), (400,)),
    HttpCase("two lengths that differ", framed(_LENGTH, "content-length: 5"), (400,)),
    HttpCase("two lengths that agree", framed(_LENGTH, _LENGTH), (400,)),
    HttpCase("a list of lengths", framed(f"content-length: {len(BODY)}, {len(BODY)}"), (400,)),
    HttpCase("a length with a plus", framed(f"content-length: +{len(BODY)}"), (400,)),
    HttpCase("a negative length", framed("content-length: -1"), (400,)),
    HttpCase("a length in hex", framed(f"content-length: {len(BODY):#x}"), (400,)),
    HttpCase("a length with a letter", framed(f"content-length: {len(BODY)}a"), (400,)),
    HttpCase("a length with an underscore", framed("content-length: 8_3"), (400,)),
    HttpCase("a length with an exponent", framed("content-length: 1e2"), (400,)),
    HttpCase("a length with a fraction", framed("content-length: 83.0"), (400,)),
    HttpCase("a length of other digits", framed("content-length: ²".encode("latin-1")), (400,)),
    HttpCase("an empty length", framed("content-length:"), (400,)),
    HttpCase("a length over 2**64", framed("content-length: 18446744073709551617"), (400,)),
    HttpCase("a length of 2**63", framed("content-length: 9223372036854775808"), (413,), leaves=True),
    HttpCase("a length over the limit", framed("content-length: 1000000000"), (413,), leaves=True),
    HttpCase("a length with zeros before it", framed(f"content-length: 000{len(BODY)}"), (200,), asked=1),
    HttpCase("no length at all", framed(), (400,)),
    HttpCase("chunked twice", framed("transfer-encoding: chunked, chunked", body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("chunked, then packed", framed("transfer-encoding: chunked, gzip"), (400,)),
    HttpCase("packed, then chunked", framed("transfer-encoding: gzip, chunked", body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("a coding that is none", framed("transfer-encoding: identity", _LENGTH), (400,)),
    HttpCase("nearly chunked", framed("transfer-encoding: xchunked", _LENGTH), (400,)),
    HttpCase("chunked with a tab", framed("transfer-encoding:\tchunked", body=_ONE_CHUNK + b"0\r\n\r\n"), (200,), asked=1),
    HttpCase("chunked in capitals", framed("Transfer-Encoding: Chunked", body=_ONE_CHUNK + b"0\r\n\r\n"), (200,), asked=1),
    HttpCase("chunked with a vertical tab", framed("transfer-encoding: \x0bchunked", body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("chunked with a parameter", framed("transfer-encoding: chunked;q=1", body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("chunked in quotes", framed('transfer-encoding: "chunked"', body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("an empty coding", framed("transfer-encoding:", _LENGTH), (400,)),
    HttpCase("two headers of codings", framed(_CHUNKED, "transfer-encoding: identity", body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("a space before the colon", framed("transfer-encoding : chunked", _LENGTH), (400,)),
    HttpCase("chunked in HTTP/1.0", request(_CHUNKED, start="POST /v1/chat/completions HTTP/1.0", body=_ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    # Chunks
    HttpCase("a size that is no number", chunked(b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("a negative size", chunked(b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("a size with 0x", chunked(b"0x" + _ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("a size with a plus", chunked(b"+" + _ONE_CHUNK + b"0\r\n\r\n"), (400,)),
    HttpCase("a size over 2**64", chunked(b"1" + b"0" * 16 + _SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("a size over the limit", chunked(b"7fffffff\r\n" + BODY), (), closes=True),
    HttpCase("an empty size", chunked(b"\r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("a size and a space", chunked(_SIZE + b" \r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("chunks that end with a line feed", chunked(_SIZE + b"\n" + BODY + b"\n0\n\n"), (400,)),
    HttpCase("a chunk longer than it says", chunked(b"1\r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("a line feed in an extension", chunked(_SIZE + b";a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"), (400,)),
    HttpCase("an extension", chunked(_SIZE + b";a=b\r\n" + BODY + b"\r\n0\r\n\r\n"), (200,), asked=1),
    HttpCase("a body of single bytes", chunked(b"".join(b"1\r\n%c\r\n" % each for each in BODY) + b"0\r\n\r\n"), (200,), asked=1),
    HttpCase("a trailer that is a length", chunked(_ONE_CHUNK + b"0\r\ncontent-length: 5\r\n\r\n"), (400,)),
    HttpCase("a trailer that is a name", chunked(_ONE_CHUNK + b"0\r\nx-session-id: late\r\n\r\n"), (200,), asked=1, not_at_engine=b"late"),
    HttpCase("a trailer that is no header", chunked(_ONE_CHUNK + b"0\r\nno colon\r\n\r\n"), (400,)),
    HttpCase("a body that stops", framed("content-length: 500"), (), closes=True),
    HttpCase("chunks that stop", chunked(_SIZE + b"\r\n" + BODY[:10]), (), closes=True),
    # Pipelined requests
    HttpCase("two in one piece", _KEPT + chat(), (200, 200), asked=2),
    HttpCase("one behind a goodbye", chat() + _INNER, (400,)),
    HttpCase("one behind a refusal", request(start="GIBBERISH", body=b"") + _INNER, (400,)),
    HttpCase("one in the body of a GET", get("/v1/models", f"content-length: {len(_INNER)}", body=_INNER), (200,)),
    HttpCase("one behind a GET", get("/v1/models", body=_INNER), (400,)),
    HttpCase("one behind a HEAD", get("/v1/models", method="HEAD", body=_INNER), (400,)),
    HttpCase("one behind a wrong path", request(f"content-length: {len(_INNER)}", _CLOSE, start="POST /nowhere HTTP/1.1", body=_INNER), (404,)),
    HttpCase("one behind empty chunks", chunked(b"0\r\n\r\n" + _INNER), (400,)),
    HttpCase("more than was announced", chat() + b"more", (400,)),
    # Start lines
    HttpCase("a method in small letters", chat(start="post /v1/chat/completions HTTP/1.1"), (400,)),
    HttpCase("a method of its own", chat(start="BREW /v1/chat/completions HTTP/1.1"), (400,)),
    HttpCase("two spaces", chat(start="POST  /v1/chat/completions HTTP/1.1"), (200,), asked=1),
    HttpCase("a tab for a space", chat(start="POST\t/v1/chat/completions\tHTTP/1.1"), (400,)),
    HttpCase("no version", chat(start="POST /v1/chat/completions"), (400,)),
    HttpCase("HTTP/0.9", request(start="GET /v1/models HTTP/0.9", body=b""), (400,)),
    HttpCase("HTTP/1.2", chat(start="POST /v1/chat/completions HTTP/1.2"), (400,)),
    HttpCase("HTTP/2.0", chat(start="POST /v1/chat/completions HTTP/2.0"), (505,)),
    HttpCase("HTTP/11", chat(start="POST /v1/chat/completions HTTP/11"), (400,)),
    HttpCase("another protocol's name", chat(start="POST /v1/chat/completions ICY/1.1"), (400,)),
    HttpCase("a space behind the version", chat(start=_START + " "), (400,)),
    HttpCase("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400,)),
    HttpCase("a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), (400,)),
    HttpCase("an SSH client", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", (400,)),
    HttpCase("a mail server", b"EHLO example.com\r\n\r\n", (400,)),
    HttpCase("zeros", bytes(64), (400,)),
    HttpCase("nothing", b"", (), closes=True),
    HttpCase("half a word", b"POS", (), closes=True),
    HttpCase("empty lines first", b"\r\n\r\n" + chat(), (200,), asked=1),
    HttpCase("a whole address", chat(start="POST http://elsewhere/v1/chat/completions HTTP/1.1"), (200,), asked=1),
    HttpCase("a tunnel", request(_CLOSE, start="CONNECT elsewhere:443 HTTP/1.1", body=b""), (404,)),
    HttpCase("one behind a tunnel", request(start="CONNECT elsewhere:443 HTTP/1.1", body=b"") + chat(), (404, 200), asked=1),
    HttpCase("a trace", get("/v1/models", method="TRACE"), (405,)),
    HttpCase("all there is", get("*", method="OPTIONS"), (404,)),
    HttpCase("a delete of a call", get("/v1/chat/completions", method="DELETE"), (405,)),
    HttpCase("a path with a zero", chat(start="POST /v1/chat/completions\0 HTTP/1.1"), (400,)),
    HttpCase("a path in raw UTF-8", chat(start="POST /v1/chät HTTP/1.1".encode()), (400,)),
    HttpCase("a path of 20,000 letters", chat(start=f"POST /{'a' * 20_000} HTTP/1.1"), (431,)),
    HttpCase("a slash in disguise", chat(start="POST /v1/chat%2Fcompletions HTTP/1.1"), (200,), asked=1),
    HttpCase("a step up", chat(start="POST /v1/models/../chat/completions HTTP/1.1"), (405,)),
    HttpCase("two slashes", chat(start="POST //v1/chat/completions HTTP/1.1"), (404,)),
    HttpCase("a way to the engine's own routes", get("/v1/responses/..%2F..%2Fmetrics"), (404,)),
    HttpCase("a way out of a path", get("/v1/responses/a%0d%0ax-evil:%201"), (404,)),
    # Headers
    HttpCase("no host", request(_LENGTH, _CLOSE, host=""), (400,)),
    HttpCase("two hosts", chat("host: y"), (400,)),
    HttpCase("a header without a colon", chat("nonsense"), (400,)),
    HttpCase("a header without a name", chat(": x"), (400,)),
    HttpCase("a space in a name", chat("x y: z"), (400,)),
    HttpCase("a name in UTF-8", chat("naïve: x"), (400,)),
    HttpCase("a zero in a value", chat("x-note: a\0b"), (400,)),
    HttpCase("a carriage return in a value", chat("x-note: a\rb"), (400,)),
    HttpCase("a bell in a value", chat("user-agent: a\x07b"), (400,)),
    HttpCase("a delete in a value", chat("user-agent: a\x7fb"), (400,)),
    HttpCase("a line that goes on", chat("x-note: a\r\n b"), (400,)),
    HttpCase("line feeds alone", chat().replace(b"\r\n", b"\n"), (400,)),
    HttpCase("a line feed within a header", chat("user-agent: a\nx-session-id: evil"), (400,)),
    HttpCase("200 headers", chat(*(f"x-{number}: y" for number in range(200))), (431,)),
    HttpCase("a header of 20,000 bytes", chat(f"x-note: {'y' * 20_000}"), (431,)),
    HttpCase("100,000 bytes of headers", chat(*(f"x-{number}: {'y' * 1000}" for number in range(100))), (431,)),
    HttpCase("headers that stop", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", (), closes=True),
    HttpCase("a euro in the user agent", chat("user-agent: €".encode()), (200,), asked=1, at_engine="user-agent: €".encode()),
    HttpCase("a Japanese session", chat("x-session-id: 会話-42".encode()), (200,), asked=1, at_engine="会話-42".encode()),
    HttpCase("what is not UTF-8 in the user agent", chat("user-agent: \xff\xfe"), (200,), asked=1, at_engine=b"user-agent: \xff\xfe"),
    HttpCase("Latin-1 in the user agent", chat("user-agent: é"), (200,), asked=1, at_engine=b"user-agent: \xe9"),
    HttpCase("a euro in the accepted types", chat("accept: €/*".encode()), (200,), asked=1, at_engine="accept: €".encode()),
    HttpCase("a euro in the trace", chat("traceparent: 00-€".encode()), (200,), asked=1),
    HttpCase("a euro in the type", chat("content-type: application/json; x=€".encode()), (200,), asked=1),
    HttpCase("a euro in the request id", chat("x-request-id: €".encode()), (200,), asked=1, not_at_engine="€".encode()),
    HttpCase("a request id of 10,000 letters", chat(f"x-request-id: {'a' * 10_000}"), (200,), asked=1, not_at_engine=b"a" * 100),
    HttpCase("two request ids", chat("x-request-id: one", "x-request-id: two"), (200,), asked=1),
    HttpCase("a rank", chat("x-data-parallel-rank: 1"), (200,), asked=1, not_at_engine=b"rank"),
    HttpCase("a priority", chat("x-vllm-priority: -9"), (200,), asked=1, not_at_engine=b"priority"),
    HttpCase("an engine's key", chat("authorization: Bearer x", "x-api-key: y"), (200,), asked=1, not_at_engine=b"x-api-key"),
    HttpCase("names of ours", chat("x-nightside-ran-at: eu-a;eu-west-1;EU", "x-nightside-tenant: acme"), (200,), asked=1, not_at_engine=b"nightside"),
    HttpCase("a connection that names headers", chat("connection: x-request-id, content-length"), (200,), asked=1),
    HttpCase("another protocol wanted", chat("connection: upgrade", "upgrade: websocket"), (200,), asked=1, not_at_engine=b"upgrade"),
    HttpCase("HTTP/2 wanted", chat("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"), (200,), asked=1, not_at_engine=b"h2c"),
    HttpCase("an expectation", framed(_LENGTH, "expect: 100-continue"), (200,), asked=1),
    HttpCase("another expectation", framed(_LENGTH, "expect: the-impossible"), (417,)),
    HttpCase("a proxy's word", chat("forwarded: for=[::1]", "x-forwarded-for: 127.0.0.1", "x-forwarded-host: admin"), (200,), asked=1, not_at_engine=b"forwarded"),
    # Compressed bodies
    HttpCase("gzip", encoded("gzip", gzip.compress(BODY)), (200,), asked=1, not_at_engine=b"content-encoding"),
    HttpCase("deflate", encoded("deflate", zlib.compress(BODY)), (200,), asked=1, not_at_engine=b"content-encoding"),
    HttpCase("identity", encoded("identity", BODY), (200,), asked=1),
    HttpCase("brotli", encoded("br", b"\x0b\x02\x80" + BODY), (415,), contains=b"gzip"),
    HttpCase("a coding that nobody knows", encoded("rot13", BODY), (415,), contains=b"gzip"),
    HttpCase("gzip twice", encoded("gzip, gzip", gzip.compress(gzip.compress(BODY))), (415,)),
    HttpCase("gzip that is none", encoded("gzip", BODY), (400,)),
    HttpCase("gzip that stops", encoded("gzip", gzip.compress(BODY)[:-12]), (400,)),
    HttpCase("gzip with a wrong checksum", encoded("gzip", gzip.compress(BODY)[:-8] + bytes(8)), (400,)),
    HttpCase("gzip and more", encoded("gzip", gzip.compress(BODY) + b"more"), (400,)),
    HttpCase("a bomb", encoded("gzip", _BOMB), (413,)),
)
# fmt: on
