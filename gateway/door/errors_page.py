"""Page `docs/reference/errors.md`: a table of the errors that clients may receive, from the gateway's definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.door import errors, token_errors
from gateway.door.errors import ErrorKind
from gateway.door.shapes import error_body

_INTRODUCTION = (
    "# Errors",
    "",
    "Every error that a gateway itself answers with, by its HTTP status. Programs go by `code`, which never changes;",
    "messages may. Where it helps, a detail follows the message, in parentheses. A gateway never shows an engine's or",
    "another gateway's address: with the answer's `x-request-id`, operators find the cause by `nightside explain`.",
    "",
    "```json",
    error_body(errors.MODEL_NOT_FOUND, "").decode(),
    "```",
    "",
    '`/v1/messages` answers in the shape of Anthropic, `{"type": "error", "error": {"type", "message", "code"}}`, any',
    'other URL in that of OpenAI, `{"error": {"message", "type", "param", "code"}}`. Status and code are the same in',
    "both. Inside an event stream that has begun with status 200, an error is an event with the same fields.",
    "",
    "*Retry*: the seconds after which a retry is useful (`retry-after`; a gateway that knows better sends its own",
    "figure), *no* where the answer says `x-should-retry: false`, and empty where a client decides by status.",
    "",
    "Errors of engines about a client's request, such as a field that the engine refuses, keep the engine's status and",
    "code, in the client's shape, and are not listed here. This page is made by `make errors-page`, which runs",
    "`nightside gateway errors`.",
)

_HEADER = "| status | code | message | retry | what to do |"
_RULE = "| --: | --- | --- | --- | --- |"

ACTIONS = {
    "audit_unavailable": "Retry; operators make room on the disk of `audit.folder`, or repair it.",
    "batch_not_cancellable": "Nothing: the batch has ended, or is about to.",
    "batch_not_ended": "Wait for the end of the batch, or cancel it.",
    "batch_not_found": "Use the id of a batch of this tenant that was not deleted by age.",
    "batches_exceeded": "Wait for a batch to end; operators may raise `batches.tenant_unfinished_max`.",
    "batches_unavailable": "Retry; the log says why, and operators repair the store of batches.",
    "bodies_share_exceeded": "Send fewer large bodies at once; operators may raise `limits.bodies_held_key_share`.",
    "body_timeout": "Send the body faster, at least at `limits.body_rate_min`, or send a smaller one.",
    "body_too_large": "Send a smaller body; operators may raise `limits.body_max`.",
    "budget_exceeded": "Wait for the next period of the budget, or ask the operator for a larger one.",
    "call_not_supported": "Use another call or another model; the detail names what is missing.",
    "class_not_allowed": "Name a lower class in `x-nightside-class`, or ask the operator for a key of a higher one.",
    "client_closed_request": "Nothing: only access logs see it, since the client has left.",
    "concurrency_exceeded": "Wait for a running request of this key to end, then retry.",
    "context_length_exceeded": "Shorten the prompt, or ask for fewer tokens.",
    "deadline_exceeded": "Ask for a shorter answer, or set a later deadline.",
    "deadline_unreachable": "Retry later, or set a later deadline.",
    "draining": "Retry: the mesh's name or the balancer leads to another gateway.",
    "engine_failed": "Retry; operators look at the engine that `nightside explain` names.",
    "engine_failed_midstream": "Send the request again if a second answer does no harm.",
    "expectation_failed": "Send `expect: 100-continue`, or no such header.",
    "file_in_use": "Cancel the batch, or wait for its end.",
    "file_not_found": "Upload the file again: it is deleted, too old, or another tenant's.",
    "files_full": "Delete files; operators may raise `batches.tenant_max` and `batches.folder_max`, or add space.",
    "gateway_full": "Retry after a pause; operators add gateways, or raise `limits.requests_max`.",
    "headers_timeout": "Send all headers within `limits.headers_wait`.",
    "headers_too_large": "Send fewer or smaller headers.",
    "http_version_not_supported": "Use HTTP/1.1.",
    "insufficient_scope": "Request an access token with the scope that the challenge in `www-authenticate` names.",
    "internal_error": "Report it as a defect, with the request's id; the log has the exception.",
    "invalid_api_key": "Send a valid key, as `authorization: Bearer KEY` or `x-api-key: KEY`.",
    "invalid_class": "Name one of the classes in the detail, or send no such header.",
    "invalid_content": "Name one of the kinds in the detail, or send no such header.",
    "invalid_encoding": "Compress the body again, or send it without compression.",
    "invalid_field": "Correct the field that `param` or the detail names.",
    "invalid_header": "Correct the header that the detail names.",
    "invalid_json": "Send valid JSON; the detail names the fault.",
    "invalid_request": "Send valid HTTP/1.1; check the client and the proxies on the way.",
    "invalid_tenant": "Name the tenant by at most 64 letters, digits, `.`, `_` and `-`, or send no such header.",
    "invalid_token": "Get a new access token; the detail names the fault.",
    "invalid_transfer_encoding": "Send `transfer-encoding: chunked` or `content-length`.",
    "issuer_unavailable": "Retry; operators check that the gateway can reach the token's issuer.",
    "method_not_allowed": "Use the method that the `allow` header or `/openapi.yaml` names.",
    "model_not_found": "Use a model that `GET /v1/models` lists for this key.",
    "not_found": "Correct the URL; the detail names the likely fault, and `/openapi.yaml` lists every URL.",
    "queue_full": "Retry after the time given; operators add replicas, or raise `queue.length_max`.",
    "queue_timeout": "Retry later; operators add replicas.",
    "request_rate_exceeded": "Retry after the time given, or ask the operator for a higher limit.",
    "residency_ingress": "Send the request to a region that the residency policy allows; the detail names the cause.",
    "residency_processing": "Do not retry; operators serve the model in an allowed region, or change the policy.",
    "response_not_found": "Send the whole conversation: the response is not stored any more, or another tenant's.",
    "tenant_concurrency_exceeded": "Wait for a running request of this tenant to end, then retry.",
    "tenant_not_allowed": "Send no tenant header, or use a key of that tenant.",
    "tenant_queue_full": "Retry after the time given; operators may raise `queue.tenant_length_max`.",
    "tenant_request_rate_exceeded": "Retry after the time given, or ask the operator for a higher limit.",
    "tenant_token_rate_exceeded": "Retry after the time given, or ask the operator for a higher limit.",
    "token_not_mapped": "Ask the operator to map the token's claims to a tenant; the detail names what is missing.",
    "token_rate_exceeded": "Retry after the time given, or ask the operator for a higher limit.",
    "too_many_connections": "Reuse connections, and retry after a pause; operators may raise `limits.connections_max`.",
    "unsupported_encoding": "Compress the body by an encoding that the detail names, or not at all.",
    "unsupported_parameter": "Leave out the field that `param` or the detail names.",
    "upload_not_found": "Begin a new upload: it is too old, or another tenant's.",
    "upload_not_pending": "Begin a new upload: it is complete, cancelled, or older than an hour.",
    "uploads_exceeded": "Retry after a pause, and end uploads in parts; operators may raise `batches.uploads_max`, "
    "`batches.tenant_uploads_max`, `batches.tenant_pending_uploads_max`.",
    "usage_unknown": "Retry; operators repair the file of usage in `state.folder`.",
}
"""Remedy of each code."""


def every_kind() -> list[ErrorKind]:
    """Every error that a client may receive, once each, by status and code."""
    defined = [*vars(errors).values(), *vars(token_errors).values(), *errors.ENDINGS.values()]
    kinds = {(each.code, each.message): each for each in defined if isinstance(each, ErrorKind)}
    return sorted(kinds.values(), key=lambda kind: (kind.status, kind.code, kind.message))


def markdown() -> str:
    """Return the page. Raises KeyError where a code has no remedy."""
    return "\n".join(_page(every_kind())) + "\n"


def _page(kinds: Iterable[ErrorKind]) -> Iterator[str]:
    yield from _INTRODUCTION
    yield from ("", _HEADER, _RULE)
    for kind in kinds:
        yield f"| {kind.status} | `{kind.code}` | {kind.message} | {_retry(kind)} | {ACTIONS[kind.code]} |"


def _retry(kind: ErrorKind) -> str:
    if not kind.may_retry:
        return "no"
    return "" if kind.retry_after_s is None else f"{kind.retry_after_s:g} s"
