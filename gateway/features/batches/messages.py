"""Anthropic's Message Batches as values: requests of a body as lines, and batches and results as that API shows them.
It does no I/O; no text of a request is in a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.features.batches.lines import BATCH_CANCELLED, BATCH_EXPIRED, LineResult, decode_result
from gateway.features.batches.state import BatchStatus, ClientBatch
from gateway.request.engine_api import MESSAGES_PATH

MESSAGE_BATCHES_PATH = f"{MESSAGES_PATH}/batches"
_SCANNED_BYTES = 1024 * 1024
"""Bytes that are looked through at once, while no other thread runs."""
_MENTIONS = (b"custom_id", b"\\u005", b"\\u006", b"\\u007")
"""Name that each request has, and beginnings of escaped letters."""
_SPACES_FACTOR = 4
"""Factor by which spaces and line breaks may lengthen a request."""
_OTHER_MENTIONS = 10_000
"""Mentions that may be in the texts of requests."""


class _Request(Struct):
    custom_id: str
    params: Raw


class _Body(Struct):
    requests: list[_Request]


def holds_many_more(body: bytes, requests: int) -> bool:
    """True if a body holds many more requests than that, as its names of members tell, also with escaped letters: it
    would hold up all threads while it is decoded."""
    most = max(2 * requests, requests + _OTHER_MENTIONS)
    pieces = (body[begin : begin + _SCANNED_BYTES] for begin in range(0, len(body), _SCANNED_BYTES))
    return sum(piece.count(each) for piece in pieces for each in _MENTIONS) > most


def request_lines(body: bytes, params_max: int) -> Iterator[bytes]:
    """Requests of a body, each as a line of an input file. Raises ValueError, also for a request with `params` of many
    more bytes than that, which are too long without their spaces too, or hold up all threads."""
    try:
        requests = msgspec.json.decode(body, type=_Body).requests
        for number, each in enumerate(requests):
            if len(each.params) > _SPACES_FACTOR * params_max:
                raise ValueError(f"requests.{number}: its params have more than {_SPACES_FACTOR * params_max:,} bytes")
            compact = Raw(msgspec.json.format(each.params, indent=-1))
            line = {"custom_id": each.custom_id, "method": "POST", "url": MESSAGES_PATH, "body": compact}
            yield msgspec.json.encode(line) + b"\n"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def batch_document(batch: ClientBatch, *, has_results: bool) -> dict[str, object]:
    """Batch as Anthropic's API shows it: counts are told once it has ended."""
    is_cancelled = batch.status is BatchStatus.CANCELLED
    ended_s = next((batch.times[name] for name in _ENDS if name in batch.times), None)
    status = "ended" if batch.has_ended else "canceling" if batch.status is BatchStatus.CANCELLING else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if batch.has_ended else batch.total,
            "succeeded": batch.completed if batch.has_ended else 0,
            "errored": batch.failed - batch.unrun if batch.has_ended else 0,
            "canceled": batch.unrun if is_cancelled else 0,
            "expired": batch.unrun if batch.has_ended and not is_cancelled else 0,
        },
        "created_at": _time(batch.created_s),
        "expires_at": _time(batch.expires_s),
        "ended_at": _time(ended_s),
        "cancel_initiated_at": _time(batch.times.get("cancelling_at")),
        "archived_at": None,
        "results_url": f"{MESSAGE_BATCHES_PATH}/{batch.id}/results" if has_results else None,
    }


_ENDS = ("completed_at", "expired_at", "cancelled_at", "failed_at")


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def result_line(line: bytes) -> bytes:
    """Result of one request, from its line in an output or error file."""
    result = decode_result(line)
    return msgspec.json.encode({"custom_id": result.custom_id, "result": _outcome(result)}) + b"\n"


def _outcome(result: LineResult) -> dict[str, object]:
    if result.is_success and result.response is not None:
        return {"type": "succeeded", "message": result.response.body}
    if result.error == BATCH_EXPIRED:
        return {"type": "expired"}
    if result.error == BATCH_CANCELLED:
        return {"type": "canceled"}
    return {"type": "errored", "error": _error(result)}


def _error(result: LineResult) -> object:
    """Error in Anthropic's shape, as the gateway and engines with this API give it."""
    message = "The request failed." if result.error is None else result.error.message
    if result.response is not None:
        told: Any = msgspec.json.decode(result.response.body)
        if isinstance(told, dict) and isinstance(told.get("error"), dict) and told.get("type") == "error":
            return told
    return {"type": "error", "error": {"type": "api_error", "message": message}, "request_id": None}
