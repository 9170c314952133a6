"""Table of every refusal and failure that a client can meet: status, code and advice on retries, by reason.

Messages never contain an engine's or a peer's words or address, nor which of the two failed: those are in the log and
in `nightside explain`, under the request's id.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import Outcome

_MILLISECOND_NS = 1_000_000


class ErrorKind(Struct, frozen=True):
    """Wire form of one reason. `code` is for programs and never changes; the message is for people."""

    status: int
    type: str
    code: str
    message: str
    retry_after_s: float | None = None
    """Seconds until a retry makes sense. SDKs retry by themselves on 408, 409, 429 and 5xx, and honour this."""
    may_retry: bool = True
    """False keeps SDKs from retrying where they otherwise would."""
    shows_detail: bool = False
    """True if the core's detail may be shown to the client."""
    challenge: str = ""
    """Challenge that tells the client what to show (RFC 6750)."""


class ClientFault(Exception):
    """Refusal of a request by the HTTP edge, before the core has seen it."""

    def __init__(self, kind: ErrorKind, detail: str = "", param: str | None = None) -> None:
        super().__init__(kind.code)
        self.kind = kind
        self.detail = detail
        self.param = param


_SECOND_NS = 1_000_000_000
_RETRY_AFTER_MIN_S = 0.1
_BAD_REQUEST = "invalid_request_error"
_OURS = "server_error"
_RATE = "rate_limit_error"

INVALID_JSON = ErrorKind(400, _BAD_REQUEST, "invalid_json", "The body is not valid JSON.", shows_detail=True)
INVALID_FIELD = ErrorKind(400, _BAD_REQUEST, "invalid_field", "A field is not valid.", shows_detail=True)
UNSUPPORTED_FIELD = ErrorKind(
    400, _BAD_REQUEST, "unsupported_parameter", "A field is not supported.", shows_detail=True
)
INVALID_TENANT = ErrorKind(400, _BAD_REQUEST, "invalid_tenant", "The tenant header is not a valid name.")
INVALID_CONTENT = ErrorKind(
    400, _BAD_REQUEST, "invalid_content", "The content header has an unknown value.", shows_detail=True
)
INVALID_CLASS = ErrorKind(
    400, _BAD_REQUEST, "invalid_class", "The class header has an unknown value.", shows_detail=True
)
INVALID_HEADER = ErrorKind(400, _BAD_REQUEST, "invalid_header", "A header is not valid.", shows_detail=True)
INVALID_REQUEST = ErrorKind(400, _BAD_REQUEST, "invalid_request", "The request could not be read.")
INVALID_API_KEY = ErrorKind(
    401, _BAD_REQUEST, "invalid_api_key", "The API key is missing or not valid.", challenge="Bearer"
)
TENANT_NOT_ALLOWED = ErrorKind(
    403, _BAD_REQUEST, "tenant_not_allowed", "This key may not name a tenant other than its own."
)
CLASS_NOT_ALLOWED = ErrorKind(
    403, _BAD_REQUEST, "class_not_allowed", "This key does not allow so high a class.", shows_detail=True
)
CONCURRENCY_EXCEEDED = ErrorKind(
    429, _RATE, "concurrency_exceeded", "The concurrency limit of this key is reached.", 1.0
)
REQUEST_RATE_EXCEEDED = ErrorKind(
    429, _RATE, "request_rate_exceeded", "The limit of requests per minute of this key is reached.", 1.0
)
TOKEN_RATE_EXCEEDED = ErrorKind(
    429, _RATE, "token_rate_exceeded", "The limit of tokens per minute of this key is reached.", 1.0
)
BUDGET_EXCEEDED = ErrorKind(
    429, _RATE, "budget_exceeded", "The token budget is used up.", may_retry=False, shows_detail=True
)
HEADERS_INCOMPLETE = ErrorKind(408, _BAD_REQUEST, "headers_timeout", "The request's headers did not arrive in time.")
HEADERS_TOO_LARGE = ErrorKind(
    431, _BAD_REQUEST, "headers_too_large", "The request's headers are too large or too many."
)
VERSION_NOT_SUPPORTED = ErrorKind(
    505, _BAD_REQUEST, "http_version_not_supported", "Only HTTP/1.0 and HTTP/1.1 are supported."
)
INVALID_TRANSFER_ENCODING = ErrorKind(
    400, _BAD_REQUEST, "invalid_transfer_encoding", "The only supported transfer-encoding is chunked, over HTTP/1.1."
)
BODY_INCOMPLETE = ErrorKind(408, _BAD_REQUEST, "body_timeout", "The request body did not arrive in time.")
BODY_TOO_LARGE = ErrorKind(413, _BAD_REQUEST, "body_too_large", "The request body is too large.")
UNSUPPORTED_ENCODING = ErrorKind(
    415, _BAD_REQUEST, "unsupported_encoding", "The body's encoding is not supported.", shows_detail=True
)
INVALID_ENCODING = ErrorKind(
    400,
    _BAD_REQUEST,
    "invalid_encoding",
    "The body is not encoded as its content-encoding says.",
    shows_detail=True,
)
EXPECTATION_FAILED = ErrorKind(
    417, _BAD_REQUEST, "expectation_failed", "The only supported expectation is `100-continue`."
)
BODIES_SHARE_EXCEEDED = ErrorKind(
    429, _RATE, "bodies_share_exceeded", "The bodies of your requests reach the memory limit of one client.", 1.0
)
NOT_FOUND = ErrorKind(404, _BAD_REQUEST, "not_found", "Unknown URL.", shows_detail=True)
METHOD_NOT_ALLOWED = ErrorKind(405, _BAD_REQUEST, "method_not_allowed", "This URL does not allow the method.")
GATEWAY_FULL = ErrorKind(503, _OURS, "gateway_full", "The gateway is at its limit of concurrent requests.", 1.0)
TOO_MANY_CONNECTIONS = ErrorKind(503, _OURS, "too_many_connections", "The gateway is at its limit of connections.", 1.0)
AUDIT_UNAVAILABLE = ErrorKind(
    503, _OURS, "audit_unavailable", "The gateway cannot write the audit record that every request requires.", 5.0
)
USAGE_UNKNOWN = ErrorKind(503, _OURS, "usage_unknown", "The gateway cannot read the remaining budget.", 5.0)
INTERNAL = ErrorKind(500, _OURS, "internal_error", "The gateway failed with an internal error.", may_retry=False)
MODEL_NOT_FOUND = ErrorKind(404, _BAD_REQUEST, "model_not_found", "The model does not exist.", shows_detail=True)

FILE_NOT_FOUND = ErrorKind(404, _BAD_REQUEST, "file_not_found", "No such File object.")
UPLOAD_NOT_FOUND = ErrorKind(404, _BAD_REQUEST, "upload_not_found", "No such Upload object.")
UPLOAD_NOT_PENDING = ErrorKind(
    409, _BAD_REQUEST, "upload_not_pending", "The upload is not pending.", may_retry=False, shows_detail=True
)
BATCH_NOT_FOUND = ErrorKind(404, _BAD_REQUEST, "batch_not_found", "No such Batch object.")
BATCH_NOT_ENDED = ErrorKind(409, _BAD_REQUEST, "batch_not_ended", "The batch has not ended.", may_retry=False)
FILE_IN_USE = ErrorKind(409, _BAD_REQUEST, "file_in_use", "A batch that has not ended reads the file.", may_retry=False)
BATCH_NOT_CANCELLABLE = ErrorKind(
    409, _BAD_REQUEST, "batch_not_cancellable", "The batch cannot be cancelled.", may_retry=False, shows_detail=True
)
BATCHES_EXCEEDED = ErrorKind(
    429, _RATE, "batches_exceeded", "Too many batches of this tenant have not ended.", may_retry=False
)
UPLOADS_EXCEEDED = ErrorKind(
    429, _RATE, "uploads_exceeded", "Too many files are being uploaded.", 2.0, shows_detail=True
)
BATCHES_UNAVAILABLE = ErrorKind(
    503, _OURS, "batches_unavailable", "The gateway cannot reach its store of files and batches.", 5.0
)
FILES_FULL = ErrorKind(
    507, _OURS, "files_full", "There is no room for a further file.", may_retry=False, shows_detail=True
)

ENDINGS: dict[Outcome, ErrorKind] = {
    Outcome.REJECTED_UNKNOWN_MODEL: MODEL_NOT_FOUND,
    Outcome.REJECTED_RESIDENCY_INGRESS: ErrorKind(
        421,
        "residency_error",
        "residency_ingress",
        "The residency policy does not allow the request in this region.",
        shows_detail=True,
    ),
    Outcome.REJECTED_RESIDENCY_PROCESSING: ErrorKind(
        403,
        "residency_error",
        "residency_processing",
        "The residency policy allows no region that serves the model.",
        may_retry=False,
    ),
    Outcome.REJECTED_QUEUE_FULL: ErrorKind(503, _OURS, "queue_full", "All engines are busy.", 2.0, shows_detail=True),
    Outcome.REJECTED_DRAINING: ErrorKind(
        503, _OURS, "draining", "This gateway is shutting down; a retry reaches another one.", 1.0
    ),
    Outcome.REJECTED_TENANT_LIMIT: ErrorKind(
        429,
        "rate_limit_error",
        "tenant_queue_full",
        "Too many requests of this tenant are waiting.",
        2.0,
        shows_detail=True,
    ),
    Outcome.REJECTED_DEADLINE: ErrorKind(
        429, _RATE, "deadline_unreachable", "The queue is too long to meet the deadline.", 1.0, shows_detail=True
    ),
    Outcome.REJECTED_TENANT_CONCURRENCY: ErrorKind(
        429,
        _RATE,
        "tenant_concurrency_exceeded",
        "The concurrency limit of this tenant is reached.",
        1.0,
        shows_detail=True,
    ),
    Outcome.REJECTED_TENANT_REQUEST_RATE: ErrorKind(
        429,
        _RATE,
        "tenant_request_rate_exceeded",
        "The limit of requests per minute of this tenant is reached.",
        1.0,
        shows_detail=True,
    ),
    Outcome.REJECTED_TENANT_TOKEN_RATE: ErrorKind(
        429,
        _RATE,
        "tenant_token_rate_exceeded",
        "The limit of tokens per minute of this tenant is reached.",
        1.0,
        shows_detail=True,
    ),
    Outcome.REJECTED_UNKNOWN_RESPONSE: ErrorKind(
        404, _BAD_REQUEST, "response_not_found", "The response that the request refers to is unknown.", may_retry=False
    ),
    Outcome.REJECTED_TOO_LONG: ErrorKind(
        400,
        _BAD_REQUEST,
        "context_length_exceeded",
        "Prompt and answer together exceed the model's context length.",
        may_retry=False,
        shows_detail=True,
    ),
    Outcome.REJECTED_UNSUPPORTED: ErrorKind(
        400,
        _BAD_REQUEST,
        "call_not_supported",
        "The engines of this model do not support this call.",
        may_retry=False,
        shows_detail=True,
    ),
    Outcome.EXPIRED_IN_QUEUE: ErrorKind(
        504, _OURS, "queue_timeout", "No engine became free before the queue timeout.", 2.0
    ),
    Outcome.EXPIRED_RUNNING: ErrorKind(
        504, _OURS, "deadline_exceeded", "The answer was not complete before the deadline.", may_retry=False
    ),
    Outcome.FAILED_BEFORE_FIRST_BYTE: ErrorKind(
        502, _OURS, "engine_failed", "The request failed before its answer began.", 1.0
    ),
    Outcome.FAILED_MIDSTREAM: ErrorKind(
        502, _OURS, "engine_failed_midstream", "The request failed after its answer had begun.", may_retry=False
    ),
    Outcome.FAILED_INTERNALLY: INTERNAL,
    Outcome.ABANDONED: ErrorKind(499, _BAD_REQUEST, "client_closed_request", "The client closed the connection."),
}
"""Outcomes that can leave a client without its answer. COMPLETED and CLIENT_ERROR have sent one."""


_BREAKS_ENGINES = replace(
    ENDINGS[Outcome.FAILED_MIDSTREAM],
    message="The request failed after its answer had begun, and so did each engine that was to resume it: no further"
    " engine is tried.",
)
"""Error for a request that may itself be what breaks engines."""


def kind_of(end: EndRequest) -> ErrorKind:
    """Error for an outcome. A known time to retry replaces that of the table."""
    if end.is_final and end.outcome is Outcome.FAILED_MIDSTREAM:
        return _BREAKS_ENGINES
    kind = ENDINGS.get(end.outcome, INTERNAL)
    return retried_after(kind, end.retry_after_ns) if end.retry_after_ns else kind


def retried_after(kind: ErrorKind, wait_ns: int) -> ErrorKind:
    """The same error with the time after which a request would pass, never rounded down."""
    return replace(kind, retry_after_s=max(_RETRY_AFTER_MIN_S, math.ceil(wait_ns / _MILLISECOND_NS) / 1000))


def error_headers(kind: ErrorKind) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    if kind.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(kind.retry_after_s))
        headers["retry-after-ms"] = str(round(kind.retry_after_s * 1000))
    if not kind.may_retry:
        headers["x-should-retry"] = "false"
    if kind.challenge:
        headers["www-authenticate"] = kind.challenge
    if kind is UNSUPPORTED_ENCODING:
        headers["accept-encoding"] = "gzip, deflate"  # RFC 9110, 12.5.3
    return headers
