"""Invalid answers of an engine, and the expected result of each: one case per line.

An answer is written piece by piece. Then the engine keeps the connection open for further requests (KEEP), closes it,
resets it, or holds it in silence until the client has left. `counts`: the engine's breaker may count the failure. After
each case, the next client must get its own answer whole, even over the same connection.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from enum import Enum

from tests.fakes.engine import DONE, GOOD_ANSWER, GOOD_STREAM, ROLE, STOP, USAGE, chat_chunk, error_event, event, token


class End(Enum):
    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HOLD = "hold"


LATER = b""
"""Marker piece: the pieces behind it are written once the client has received something."""
KEEP, CLOSE, RESET, HOLD = End.KEEP, End.CLOSE, End.RESET, End.HOLD


@dataclass(frozen=True, slots=True)
class EngineCase:
    name: str
    pieces: tuple[bytes, ...]
    status: int
    """Status that the client gets; 0 if the client leaves before any answer."""
    counts: bool
    end: End = KEEP
    contains: bytes = b""
    """Bytes that the client's answer must contain, below the status."""
    lacks: bytes = b""
    """Bytes that the client's answer must not contain."""


def whole(body: bytes = GOOD_ANSWER, *lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> tuple[bytes]:
    """One answer with its length; `lines` are further headers."""
    return (headed(*lines, b"content-length: %d" % len(body), first=first) + body,)


def headed(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK", kind: bytes = b"application/json") -> bytes:
    return b"\r\n".join([first, b"content-type: " + kind, *lines, b"", b""])


def streamed(*events: bytes, lines: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """A complete stream in chunks."""
    return (*unfinished(*events, lines=lines), b"0\r\n\r\n")


def unfinished(*events: bytes, lines: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    head = headed(b"transfer-encoding: chunked", *lines, kind=b"text/event-stream")
    return (head, *(b"%x\r\n%b\r\n" % (len(each), each) for each in events))


def begun(*events: bytes) -> tuple[bytes, ...]:
    """A stream whose first token the client has received before these events are sent."""
    head, token_chunk, *rest = unfinished(ROLE + token("x"), *events)
    return (head, token_chunk, LATER, *rest, b"0\r\n\r\n")


def status(line: bytes) -> tuple[bytes]:
    return whole(first=line)


def answered(**more: object) -> tuple[bytes]:
    """A valid answer with other fields."""
    return whole(json.dumps({**json.loads(GOOD_ANSWER), **more}).encode())


def refused(code: bytes, body: bytes) -> tuple[bytes]:
    return whole(body, first=b"HTTP/1.1 " + code)


def drip(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + 1] for at in range(len(data)))


_STREAM = b"".join(GOOD_STREAM)
_HALF = chat_chunk({"content": "never whole"})[:-20]
_BROKE_OFF = b"engine_failed_midstream"
_HUGE = b"1" + b"0" * 400
"""Number that no float can hold."""
_SECOND = whole()[0]
_EVIL = whole(b'{"choices": [], "evil": true}')[0]
_DEEP = b"[" * 100_000 + b"]" * 100_000


def _counted(usage: bytes) -> tuple[bytes]:
    return whole(b'{"choices": [], "usage": ' + usage + b"}")


def _stream_counting(usage: bytes) -> tuple[bytes, ...]:
    return streamed(ROLE + token("x"), STOP, b'data: {"choices": [], "usage": ' + usage + b"}\n\n", DONE)


# fmt: off
ENGINE_CASES = (
    # Status lines
    EngineCase("no reason", status(b"HTTP/1.1 200"), 200, False),
    EngineCase("HTTP/1.0", status(b"HTTP/1.0 200 OK"), 200, False, CLOSE),
    EngineCase("HTTP/2.0", status(b"HTTP/2.0 200 OK"), 200, False),
    EngineCase("HTTP/9.9", status(b"HTTP/9.9 200 OK"), 502, True),
    EngineCase("another protocol", status(b"ICY 200 OK"), 502, True),
    EngineCase("small letters", status(b"http/1.1 200 ok"), 502, True),
    EngineCase("no space", status(b"HTTP/1.1 200OK"), 502, True),
    EngineCase("a status of two digits", status(b"HTTP/1.1 20 OK"), 502, True),
    EngineCase("a status of four digits", status(b"HTTP/1.1 2000 OK"), 502, True),
    EngineCase("a negative status", status(b"HTTP/1.1 -200 OK"), 502, True),
    EngineCase("a status in letters", status(b"HTTP/1.1 abc OK"), 502, True),
    EngineCase("a status of 0", status(b"HTTP/1.1 000 OK"), 502, True, CLOSE),
    EngineCase("a status of 600", status(b"HTTP/1.1 600 Odd"), 502, True),
    EngineCase("a status of 999", status(b"HTTP/1.1 999 Odd"), 502, True),
    EngineCase("an SSH server", (b"SSH-2.0-OpenSSH_9.2\r\n",), 502, True),
    EngineCase("a TLS alert", (b"\x15\x03\x01\x00\x02\x02\x28",), 502, True, CLOSE),
    EngineCase("zeros", (bytes(100),), 502, True),
    # Statuses that no call is answered with
    EngineCase("interim answers only", (b"HTTP/1.1 100 Continue\r\n\r\n" * 10,), 502, True, CLOSE),
    EngineCase("an interim answer first", (b"HTTP/1.1 103 Early Hints\r\nx-evil: 1\r\n\r\n", *whole()), 200, False, lacks=b"x-evil"),
    EngineCase("an interim answer with a length, then none", (b"HTTP/1.1 103 Early Hints\r\ncontent-length: 9\r\n\r\n", headed() + GOOD_ANSWER), 200, False, CLOSE, contains=GOOD_ANSWER),
    EngineCase("another protocol from now on", (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",), 502, True),
    EngineCase("nothing to say", (b"HTTP/1.1 204 No Content\r\n\r\n",), 502, True),
    EngineCase("nothing to say, and says it", (b"HTTP/1.1 204 No Content\r\ncontent-length: 4\r\n\r\n", _EVIL), 502, True, lacks=b"evil"),
    EngineCase("reset content", (b"HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n",), 502, True),
    EngineCase("a redirection", whole(b"{}", b"location: http://169.254.169.254/", first=b"HTTP/1.1 307 Temporary Redirect"), 502, True, lacks=b"169.254"),
    EngineCase("not modified", (b"HTTP/1.1 304 Not Modified\r\n\r\n",), 502, True),
    EngineCase("our key is not known", refused(b"401 Unauthorized", b'{"error":"Unauthorized"}'), 502, True, lacks=b"www-authenticate"),
    EngineCase("it wants a proxy's key", refused(b"407 Proxy Authentication Required", b"{}"), 407, False),
    EngineCase("it waited for us", refused(b"408 Request Timeout", b"{}"), 502, True),
    EngineCase("it is full", refused(b"503 Service Unavailable", b"{}"), 503, False),
    EngineCase("it limits the rate", refused(b"429 Too Many Requests", b"{}"), 503, False),
    EngineCase("it fails", refused(b"500 Internal Server Error", b"oops"), 502, True, lacks=b"oops"),
    # Lengths
    EngineCase("a length and chunks", (headed(b"content-length: 5", b"transfer-encoding: chunked") + b"0\r\n\r\n",), 502, True),
    EngineCase("two lengths", (headed(b"content-length: 2", b"content-length: 200") + GOOD_ANSWER,), 502, True),
    EngineCase("a negative length", (headed(b"content-length: -5") + GOOD_ANSWER,), 502, True),
    EngineCase("a length in words", (headed(b"content-length: five") + GOOD_ANSWER,), 502, True),
    EngineCase("a length over 2**64", (headed(b"content-length: 99999999999999999999") + GOOD_ANSWER,), 502, True),
    EngineCase("less than it says", (headed(b"content-length: 9999") + GOOD_ANSWER,), 502, True, CLOSE),
    EngineCase("less than it says, by reset", (headed(b"content-length: 9999") + GOOD_ANSWER,), 502, True, RESET),
    EngineCase("more than it says", (headed(b"content-length: 10") + GOOD_ANSWER,), 502, True),
    EngineCase("a second answer behind it", (_SECOND + _EVIL,), 200, False, lacks=b"evil"),
    EngineCase("a second answer soon after", (_SECOND, LATER, _EVIL), 200, False, lacks=b"evil"),
    EngineCase("half a second answer", (_SECOND + _EVIL[:20],), 200, False),
    EngineCase("no length", (headed() + GOOD_ANSWER,), 200, False, CLOSE, contains=GOOD_ANSWER),
    EngineCase("no length, by reset", (headed(), GOOD_ANSWER), 502, True, RESET),
    EngineCase("a chunk's size that is none", (headed(b"transfer-encoding: chunked") + b"zz\r\n",), 502, True),
    EngineCase("a chunk's size over 2**64", (headed(b"transfer-encoding: chunked") + b"f" * 20 + b"\r\n",), 502, True),
    EngineCase("chunks that stop", (headed(b"transfer-encoding: chunked") + b"5\r\nabc",), 502, True, CLOSE),
    EngineCase("chunks in a packing", (headed(b"transfer-encoding: gzip, chunked") + b"2\r\n{}\r\n0\r\n\r\n",), 502, True),
    EngineCase("a packed answer", whole(gzip.compress(GOOD_ANSWER), b"content-encoding: gzip"), 502, True),
    EngineCase("an answer that says it is not packed", whole(GOOD_ANSWER, b"content-encoding: identity"), 200, False),
    # Headers
    EngineCase("headers without an end", (b"HTTP/1.1 200 OK\r\n" + b"x-flood: y\r\n" * 20_000,), 502, True),
    EngineCase("300 headers", whole(GOOD_ANSWER, *(b"x-%d: y" % number for number in range(300))), 502, True),
    EngineCase("a header of 100,000 bytes", whole(GOOD_ANSWER, b"x-note: " + b"y" * 100_000), 502, True),
    EngineCase("a name of 100,000 bytes", whole(GOOD_ANSWER, b"x" * 100_000 + b": y"), 502, True),
    EngineCase("a header without a colon", whole(GOOD_ANSWER, b"nonsense"), 502, True),
    EngineCase("a space in a name", whole(GOOD_ANSWER, b"x y: z"), 502, True),
    EngineCase("a zero in a value", whole(GOOD_ANSWER, b"x-note: a\0b"), 502, True),
    EngineCase("a carriage return in a value", whole(GOOD_ANSWER, b"x-note: a\rset-cookie: evil=1"), 502, True, lacks=b"evil"),
    EngineCase("a line that goes on", whole(GOOD_ANSWER, b"x-note: a\r\n b"), 502, True),
    EngineCase("a value in UTF-8", whole(GOOD_ANSWER, "x-note: €".encode()), 200, False, contains="x-note: €".encode()),
    EngineCase("a value that is not UTF-8", whole(GOOD_ANSWER, b"x-note: \xff\xfe"), 200, False, contains=b"x-note: \xff\xfe"),
    EngineCase("a cookie", whole(GOOD_ANSWER, b"set-cookie: evil=1"), 200, False, lacks=b"evil"),
    EngineCase("a header of its connection", whole(GOOD_ANSWER, b"connection: x-inside", b"x-inside: evil"), 200, False, lacks=b"evil"),
    EngineCase("headers of its connection, in capitals", whole(GOOD_ANSWER, b"Connection: close, X-Inside , X-Other", b"x-inside: evil", b"X-OTHER: evil"), 200, False, CLOSE, lacks=b"evil"),
    EngineCase("names of ours", whole(GOOD_ANSWER, b"x-nightside-region: evil-1", b"x-request-id: evil"), 200, False, lacks=b"evil"),
    EngineCase("no kind", (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(GOOD_ANSWER), GOOD_ANSWER),), 200, False),
    EngineCase("a kind that is none", whole(GOOD_ANSWER, b"content-type: \xff;;"), 200, False),
    # Bodies
    EngineCase("nothing", whole(b""), 502, True),
    EngineCase("a page", whole(b"<html>welcome</html>"), 502, True),
    EngineCase("null", whole(b"null"), 502, True),
    EngineCase("a list", whole(b"[" + GOOD_ANSWER + b"]"), 502, True),
    EngineCase("a number", whole(b"5"), 502, True),
    EngineCase("half an answer", whole(GOOD_ANSWER[:-5]), 502, True),
    EngineCase("two answers in one", whole(GOOD_ANSWER * 2), 502, True),
    EngineCase("what is not UTF-8", whole(GOOD_ANSWER.replace(b"Hello", b"\xff\xfe")), 502, True),
    EngineCase("half a character in UTF-8", whole(GOOD_ANSWER.replace(b"Hello", b"\xe2\x82")), 502, True),
    EngineCase("a byte order mark", whole(b"\xef\xbb\xbf" + GOOD_ANSWER), 502, True),
    EngineCase("UTF-16", whole(GOOD_ANSWER.decode().encode("utf-16")), 502, True),
    EngineCase("NaN", whole(b'{"choices": [], "x": NaN}'), 502, True),
    EngineCase("100,000 levels", whole(b'{"choices": ' + _DEEP + b"}"), 502, True),
    EngineCase("an error in place of an answer", answered(error={"message": "secret", "code": 500}), 502, True, lacks=b"secret"),
    EngineCase("an error that is a client's", answered(error={"message": "too long", "code": 400}), 400, False),
    EngineCase("an error that is true", answered(error=True), 502, True),
    EngineCase("an error whose code is a list", answered(error={"code": []}), 502, True),
    EngineCase("an error whose code is beyond all numbers", whole(b'{"error": {"code": ' + _HUGE + b"}}"), 502, True),
    EngineCase("an error whose code has other digits", answered(error={"code": "٤٠٤"}), 404, False),
    EngineCase("choices that are null", answered(choices=None), 200, False),
    EngineCase("choices of nothing", answered(choices=[None, 1, [], {}]), 502, True),
    EngineCase("an end that is a list", answered(choices=[{"finish_reason": []}]), 502, True),
    EngineCase("an end that is an object", answered(choices=[{"finish_reason": {"a": 1}}]), 502, True),
    EngineCase("an end by abort", answered(choices=[{"finish_reason": "abort"}]), 502, True),
    EngineCase("an object's kind that is a list", answered(object=[]), 200, False),
    EngineCase("an id that is a number", answered(object="response", id=5), 200, False),
    EngineCase("an id of 100,000 letters", answered(object="response", id="a" * 100_000), 200, False),
    EngineCase("an answer of 3 MiB", whole(GOOD_ANSWER.replace(b"Hello", b"x" * (3 << 20))), 200, False),
    EngineCase("3 MiB that stop", (headed(b"content-length: 9999999") + GOOD_ANSWER.replace(b"Hello", b"x" * (3 << 20)),), 200, True, CLOSE),
    # Usage counts
    EngineCase("a count beyond all numbers", _counted(b'{"prompt_tokens": ' + _HUGE + b', "completion_tokens": ' + _HUGE + b"}"), 200, False),
    EngineCase("a count of 2**64", _counted(b'{"prompt_tokens": 18446744073709551616, "completion_tokens": 1}'), 200, False),
    EngineCase("a count of 2**62", _counted(b'{"prompt_tokens": 4611686018427387904, "completion_tokens": 4611686018427387904}'), 200, False),
    EngineCase("a negative count", _counted(b'{"prompt_tokens": -5, "completion_tokens": -5}'), 200, False),
    EngineCase("a count with a fraction", _counted(b'{"prompt_tokens": 1.5, "completion_tokens": 1e308}'), 200, False),
    EngineCase("a count that is true", _counted(b'{"prompt_tokens": true, "completion_tokens": false}'), 200, False),
    EngineCase("a count that is text", _counted(b'{"prompt_tokens": "22", "completion_tokens": null}'), 200, False),
    EngineCase("counts in a list", _counted(b'[{"prompt_tokens": 22}]'), 200, False),
    EngineCase("details that are a list", _counted(b'{"prompt_tokens": 1, "prompt_tokens_details": [1]}'), 200, False),
    EngineCase("cached beyond all numbers", _counted(b'{"input_tokens": 1, "cache_read_input_tokens": ' + _HUGE + b"}"), 200, False),
    EngineCase("a stream's count beyond all numbers", _stream_counting(b'{"prompt_tokens": ' + _HUGE + b', "completion_tokens": ' + _HUGE + b"}"), 200, False),
    EngineCase("a stream's count of 2**64", _stream_counting(b'{"prompt_tokens": 18446744073709551616, "completion_tokens": 18446744073709551616}'), 200, False),
    # Errors
    EngineCase("a refusal in HTML", refused(b"400 Bad Request", b"<html>no</html>"), 400, False, lacks=b"<html>"),
    EngineCase("a refusal without a word", refused(b"400 Bad Request", b""), 400, False, contains=b'"error"'),
    EngineCase("a refusal that is not UTF-8", refused(b"400 Bad Request", b'{"error": {"message": "\xff"}}'), 400, False, contains=b'"error"'),
    EngineCase("a refusal of 100,000 levels", refused(b"400 Bad Request", _DEEP), 400, False),
    EngineCase("a refusal of 2 MiB", refused(b"400 Bad Request", b"x" * (2 << 20)), 400, False, contains=b"status 400", lacks=b"xxx"),
    EngineCase("a refusal that quotes 2 MiB of its request", refused(b"400 Bad Request", b'{"error": {"message": "' + b"x" * (2 << 20) + b'"}}'), 400, False, contains=b"status 400"),
    EngineCase("a refusal that stops", (headed(b"content-length: 99", first=b"HTTP/1.1 400 Bad Request") + b"{",), 502, True, CLOSE),
    EngineCase("a refusal whose code is beyond all numbers", refused(b"400 Bad Request", b'{"error": {"message": "no", "code": ' + _HUGE + b"}}"), 400, False, contains=b'"error"'),
    EngineCase("a refusal whose code is 2**64", refused(b"400 Bad Request", b'{"message": "no", "code": 18446744073709551616}'), 400, False, contains=b'"error"'),
    EngineCase("a refusal whose detail is beyond all numbers", refused(b"422 Unprocessable", b'{"detail": [' + _HUGE + b"]}"), 422, False, contains=b'"error"'),
    EngineCase("a refusal in a list", refused(b"400 Bad Request", b"[1]"), 400, False, contains=b'"error"'),
    EngineCase("a refusal with a number for words", refused(b"400 Bad Request", b'{"error": {"message": 5}}'), 400, False),
    EngineCase("a refusal as a stream", (headed(b"content-length: 12", first=b"HTTP/1.1 400 Bad Request", kind=b"text/event-stream") + b"data: [1]\n\n ",), 400, False),
    EngineCase("busy, then silence", (headed(b"content-length: 9", first=b"HTTP/1.1 503 Unavailable"),), 503, False, CLOSE),
    # Streams
    EngineCase("a good stream, byte by byte", drip(b"".join(streamed(*GOOD_STREAM))), 200, False, contains=b"[DONE]"),
    EngineCase("a stream with a length", (headed(b"content-length: %d" % len(_STREAM), kind=b"text/event-stream") + _STREAM,), 200, False, contains=b"[DONE]"),
    EngineCase("a stream until it closes", (headed(kind=b"text/event-stream") + _STREAM,), 200, False, CLOSE, contains=b"[DONE]"),
    EngineCase("a stream without its last chunk", unfinished(*GOOD_STREAM), 200, False, CLOSE, contains=b"[DONE]"),
    EngineCase("a stream without a word", streamed(), 502, True),
    EngineCase("a stream of comments", streamed(b": hello\n\n" * 1000), 502, True),
    EngineCase("a stream that is done at once", streamed(DONE), 502, True),
    EngineCase("a stream that only announces", streamed(ROLE, DONE), 502, True),
    EngineCase("a stream that is done twice", streamed(*GOOD_STREAM, DONE), 200, False),
    EngineCase("an error after its end", (*unfinished(*GOOD_STREAM), LATER, b"2a\r\ndata: {\"error\": {\"message\": \"no\", \"a\": 1}}\r\n0\r\n\r\n"), 200, False),
    EngineCase("an answer after its end", (*streamed(*GOOD_STREAM), _EVIL), 200, False, lacks=b"evil"),
    EngineCase("a stream that is no JSON", streamed(b"data: <html>\n\n"), 502, True),
    EngineCase("a stream of null", streamed(b"data: null\n\n", DONE), 502, True),
    EngineCase("a stream whose first event is not UTF-8", streamed(ROLE.replace(b'""', b'"\xff"'), DONE), 502, True),
    EngineCase("a stream whose first event stops within a character", streamed(token("x").replace(b'"x"', b'"\xe2\x82"'), *GOOD_STREAM[1:]), 502, True),
    EngineCase("a stream with a byte order mark", streamed(b"\xef\xbb\xbf" + GOOD_STREAM[0], *GOOD_STREAM[1:]), 200, False),
    EngineCase("a stream that fails at once, behind a byte order mark", streamed(b"\xef\xbb\xbf" + error_event(500), DONE), 502, True),
    EngineCase("a stream of carriage returns", streamed(_STREAM.replace(b"\n", b"\r\n")), 200, False, contains=b"[DONE]"),
    EngineCase("a stream whose first event is 3 MiB", streamed(token("x" * (3 << 20)), *GOOD_STREAM[1:]), 200, False, contains=b"[DONE]"),
    EngineCase("a stream that fails at once", streamed(error_event(500), DONE), 502, True),
    EngineCase("a stream that is full at once", streamed(error_event(503), DONE), 503, False),
    EngineCase("a stream that refuses at once", streamed(error_event(400), DONE), 400, False),
    EngineCase("a stream that refuses with a code beyond all numbers", streamed(b'data: {"error": {"code": ' + _HUGE + b"}}\n\n"), 502, True),
    EngineCase("a stream whose refusal has a code within", streamed(b'data: {"error": {"code": "400", "x": ' + _HUGE + b"}}\n\n"), 400, False),
    EngineCase("a stream that fails later", begun(error_event(500)), 200, True, contains=_BROKE_OFF),
    EngineCase("a stream that aborts", begun(chat_chunk({"content": ""}, "abort"), DONE), 200, True, contains=_BROKE_OFF),
    EngineCase("a stream whose end is a list", begun(event({"choices": [{"finish_reason": ["error"]}]}), DONE), 200, True, contains=_BROKE_OFF),
    EngineCase("a stream whose first end is an object", streamed(event({"choices": [{"finish_reason": {"a": 1}, "delta": {}}]}), DONE), 502, True),
    EngineCase("a stream of odd choices", streamed(event({"choices": [None, 5, {"delta": []}]}), STOP, DONE), 502, True),
    EngineCase("a stream of choices that are text", streamed(event({"choices": "x"}), ROLE + token("x"), STOP, DONE), 502, True),
    EngineCase("a stream with an error that is a list", begun(event({"error": [1]})), 200, True, contains=_BROKE_OFF),
    EngineCase("a stream of another API", streamed(b'event: message_start\ndata: {"type": "message_start", "message": []}\n\n'), 502, True),
    EngineCase("a stream that stops before a token", unfinished(ROLE), 502, True, CLOSE),
    EngineCase("a stream that stops", (*unfinished(ROLE + token("x")), LATER), 200, True, CLOSE, contains=_BROKE_OFF),
    EngineCase("a stream that is reset", (*unfinished(ROLE + token("x")), LATER), 200, True, RESET, contains=_BROKE_OFF),
    EngineCase("a stream that stops within an event", begun(_HALF)[:-1], 200, True, CLOSE, contains=_BROKE_OFF, lacks=b"never whole"),
    EngineCase("a stream that ends within an event", begun(_HALF), 200, True, contains=_BROKE_OFF, lacks=b"never whole"),
    EngineCase("a stream that ends without saying so", begun(USAGE), 200, True, contains=_BROKE_OFF),
    EngineCase("a chunk that is none, after a token", (*unfinished(ROLE + token("x")), LATER, b"zz\r\n"), 200, True, contains=_BROKE_OFF),
    # Disconnects
    EngineCase("it closes at once", (), 502, True, CLOSE),
    EngineCase("it resets at once", (), 502, True, RESET),
    EngineCase("it resets within its first line", (b"HTTP/1.1 2",), 502, True, RESET),
    EngineCase("it resets within its headers", (b"HTTP/1.1 200 OK\r\ncontent-ty",), 502, True, RESET),
    EngineCase("it resets after its headers", (headed(b"content-length: 9"),), 502, True, RESET),
    EngineCase("it resets after its answer", whole(), 200, False, RESET),
    EngineCase("it says nothing", (), 0, False, HOLD),
    EngineCase("it stops within its first line", (b"HTTP/1.1 2",), 0, False, HOLD),
    EngineCase("it stops within its headers", (b"HTTP/1.1 200 OK\r\ncontent-ty",), 0, False, HOLD),
    EngineCase("it stops after its headers", (headed(b"content-length: 9"),), 0, False, HOLD),
    EngineCase("it stops before a token", unfinished(ROLE), 0, False, HOLD),
    EngineCase("it stops after interim answers", (b"HTTP/1.1 100 Continue\r\n\r\n" * 100,), 0, False, HOLD),
)
# fmt: on
