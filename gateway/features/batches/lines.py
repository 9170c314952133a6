"""Lines of a batch's files: reads requests, finds faults, writes results, and finds what a result file holds after a
crash. It does no I/O; no text of a line is in a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct

from gateway.features.batches.state import LineFault

FAULTS_MAX = 100
"""Faults of one file that are told; reading ends with the last."""
CUSTOM_ID_MAX = 512
_NESTING_ROOM = 64
"""Levels of JSON left above an answer, so that its result is decoded wherever the answer was."""
_TRIES_MAX = 5
_WAIT_MIN_S = 1.0
_WAIT_MAX_S = 30.0


class LineRequest(Struct, frozen=True):
    """Request of one line."""

    custom_id: str
    body: bytes


class _Error(Struct):
    code: str | int | None = None


class _Answer(Struct):
    error: _Error


class _Line(Struct):
    custom_id: str
    method: str
    url: str
    body: Raw


class _Body(Struct):
    model: str
    stream: bool | None = None


class _Response(Struct):
    status_code: int
    request_id: str
    body: Raw


class ResultError(Struct):
    code: str
    message: str


class LineResult(Struct):
    """Result of one line, as it stands in an output or error file."""

    id: str
    custom_id: str
    response: _Response | None
    error: ResultError | None

    @property
    def is_success(self) -> bool:
        return self.response is not None and 200 <= self.response.status_code < 300

    @property
    def has_run(self) -> bool:
        return self.error not in (BATCH_EXPIRED, BATCH_CANCELLED)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


BATCH_EXPIRED = ResultError("batch_expired", "This request could not be executed before the completion window expired.")
BATCH_CANCELLED = ResultError("batch_cancelled", "The batch was cancelled before this request was executed.")

_decode_line = msgspec.json.Decoder(_Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode
decode_result = msgspec.json.Decoder(LineResult).decode


def digest_of(custom_id: str) -> bytes:
    """Digest that stands for a `custom_id` of any length."""
    return blake2b(custom_id.encode(), digest_size=16).digest()


def read_line(line: bytes) -> LineRequest:
    """Request of a line that was checked before."""
    read = _decode_line(line)
    return LineRequest(read.custom_id, bytes(read.body))


class LineChecker:
    """Checks the lines of one file, in order."""

    def __init__(
        self,
        endpoint: str,
        lines_max: int,
        line_bytes_max: int,
        *,
        may_mix_models: bool = False,
        take_request: Callable[[int, bytes], None] = lambda _number, _body: None,
    ) -> None:
        """`take_request` is given the number and the body of each line without a fault."""
        self.model = ""
        self.total = 0
        self.faults: list[LineFault] = []
        self._endpoint = endpoint
        self.lines_max = lines_max
        self.line_bytes_max = line_bytes_max
        self._may_mix_models = may_mix_models
        self._take_request = take_request
        self._number = 0
        self._seen: set[bytes] = set()

    def take(self, line: bytes) -> bool:
        """Take in a line, which may be cut behind the largest length. False: more lines need not be read."""
        self._number += 1
        if len(line) <= self.line_bytes_max and not line.strip():
            return True
        self.total += 1
        if self.total > self.lines_max:
            self._found("too_many_tasks", f"The file holds more than {self.lines_max:,} requests.", None)
            return False
        self._check(line)
        return len(self.faults) < FAULTS_MAX

    def end(self) -> tuple[LineFault, ...]:
        """All faults."""
        if not self.total:
            self.faults.append(LineFault("empty_file", "The file holds no request."))
        return tuple(self.faults)

    def _found(self, code: str, message: str, param: str | None) -> None:
        self.faults.append(LineFault(code, message, param, self._number))

    def _check(self, line: bytes) -> None:
        if len(line) > self.line_bytes_max:
            self._found("line_too_long", f"This line is longer than {self.line_bytes_max:,} bytes.", None)
            return
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._found("invalid_json_line", "This line is not parseable as valid JSON.", None)
            return
        if not isinstance(fields, dict):
            self._found("invalid_json_line", "This line is not a JSON object.", None)
            return
        missing = [name for name in ("custom_id", "method", "url", "body") if name not in fields]
        if missing:
            self._found("missing_required_parameter", f"Missing required parameter: '{missing[0]}'.", missing[0])
            return
        try:
            self._check_fields(_decode_line(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._found("invalid_type", "A parameter of this line has the wrong type.", None)

    def _check_fields(self, line: _Line) -> None:
        if not 0 < len(line.custom_id) <= CUSTOM_ID_MAX:
            self._found("invalid_custom_id", f"The custom_id should have 1 to {CUSTOM_ID_MAX} characters.", "custom_id")
            return
        digest = digest_of(line.custom_id)
        if digest in self._seen:
            message = "The custom_id of this line is a duplicate of another request's in this batch."
            self._found("duplicate_custom_id", message, "custom_id")
        self._seen.add(digest)
        if line.method != "POST":
            self._found("invalid_method", "The method should be POST.", "method")
        if line.url != self._endpoint:
            self._found("invalid_url", "The URL provided for this request does not match the batch endpoint.", "url")
        try:
            body = _decode_body(line.body)
        except msgspec.DecodeError:
            self._found("invalid_request", "The body should be an object with a `model`.", "body")
            return
        if body.stream:
            self._found("invalid_request", "A request of a batch cannot be streamed.", "body.stream")
        if self.model and body.model != self.model and not self._may_mix_models:
            message = "The model of this request is not that of the requests before; a batch has one model."
            self._found("mismatched_model", message, "body.model")
        self.model = self.model or body.model
        if not self.faults or self.faults[-1].line != self._number:
            self._take_request(self._number, bytes(line.body))


def result_of(result_id: str, custom_id: str, status: int, request_id: str, body: bytes) -> LineResult:
    """Result of a line that was answered."""
    try:
        told = Raw(msgspec.json.format(body, indent=-1))
        msgspec.json.format(b"[" * _NESTING_ROOM + told + b"]" * _NESTING_ROOM)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return LineResult(result_id, custom_id, None, ResultError("invalid_answer", "The answer is not valid JSON."))
    return LineResult(result_id, custom_id, _Response(status, request_id, told), None)


def is_error(body: bytes, code: str) -> bool:
    """True if an answer is the gateway's error with this code."""
    try:
        return msgspec.json.decode(body, type=_Answer).error.code == code
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class FoundResult(Struct, frozen=True):
    """Result that a file holds after a crash."""

    custom_id: str
    length: int
    """Bytes of its line."""
    has_run: bool
    """False for a line that its batch's end kept from running."""


def whole_results(lines: Iterable[bytes]) -> Iterator[FoundResult]:
    """Whole results of a file. They end before a torn line, and what follows is to be cut off."""
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            result = decode_result(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        yield FoundResult(result.custom_id, len(line), result.has_run)


def wait_before_retry_s(status: int, told_s: float, tries: int) -> float | None:
    """Seconds to wait before a line is sent again after so many tries; None: its answer stands. Refusals for want of
    room, of a rate or of a service are waited out until the window ends; a failure or an unknown model is tried a few
    times, since engines may be starting."""
    if status not in (404, 408, 409, 429) and status < 500:
        return None
    if status not in (429, 503, 504) and tries >= _TRIES_MAX:
        return None
    return min(_WAIT_MAX_S, max(told_s, _WAIT_MIN_S * (1 << min(tries - 1, 5))))
