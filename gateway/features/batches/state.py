"""State of a batch and of a file, and every change of it, as values. It reads no clock and does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.vocabulary import TenantName
from gateway.request.callers import ClientKey
from gateway.request.engine_api import MESSAGES_PATH

WINDOW = "24h"
WINDOW_S = 24 * 3600
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
UPLOAD_WINDOW_S = 3600
_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_UPLOAD_ID = re.compile(r"upload_[0-9a-f]{24}")
_BATCH_ID = re.compile(r"(?:msg)?batch_[0-9a-f]{24}")
_RISK_SHARE = 0.1
_WAIT_MIN_S = 30.0
_WAIT_MAX_S = 900.0
_TRIES_MAX = 5


def is_file_id(text: str) -> bool:
    """True for an id that a gateway may have given to a file."""
    return _FILE_ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """True for an id that a gateway may have given to a batch."""
    return _BATCH_ID.fullmatch(text) is not None


def is_upload_id(text: str) -> bool:
    """True for an id that a gateway may have given to an upload in parts."""
    return _UPLOAD_ID.fullmatch(text) is not None


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


class LineFault(Struct, frozen=True):
    """Reason why an input file is no batch; `line` counts from 1, and is None for a fault of the file as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


INPUT_LOST = LineFault("input_file_lost", "The input file is not there any more.", "input_file_id")
INTERNAL_ERROR = LineFault("internal_error", "The gateway could not bring this batch to its end.")


class StoredPart(Struct, frozen=True):
    """Part of a file, which is stored under a name of its own."""

    name: str
    size: int


class StoredFile(Struct, frozen=True, kw_only=True):
    """File of a tenant."""

    id: str
    tenant: TenantName
    filename: str
    purpose: str
    size: int
    created_s: int
    expires_s: int
    parts: tuple[StoredPart, ...] = ()
    """Parts of a file of results, of whole lines each; empty: the file is stored as a whole, under its id."""
    upload: str = ""
    """Upload that this is a part of, which the API does not show as a file; empty: none."""

    @property
    def stored_names(self) -> list[str]:
        """Names under which its content is stored, in order."""
        return [each.name for each in self.parts] or [self.id]

    def document(self) -> dict[str, object]:
        """File as OpenAI's API shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }

    @property
    def part_id(self) -> str:
        """Id of a part of an upload, as OpenAI's API shows it."""
        return self.id.replace("file-", "part_", 1)

    def part_document(self) -> dict[str, object]:
        """Part of an upload as OpenAI's API shows it."""
        return {
            "id": self.part_id,
            "object": "upload.part",
            "created_at": self.created_s,
            "upload_id": self.upload,
        }


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class UploadInParts(Struct, frozen=True, kw_only=True):
    """Upload of one file in parts, each of which is kept once it is answered. Times are seconds since 1970."""

    id: str
    tenant: TenantName
    filename: str
    size: int
    """Bytes of the whole file."""
    created_s: int
    expires_s: int
    keep_s: int
    """Seconds for which the file is kept, from its completion on."""
    status: UploadStatus = UploadStatus.PENDING
    """Status as it is stored, where nothing expires; `status_at` tells the one in force."""
    file: StoredFile | None = None
    """File as it was when the upload was completed."""
    parts_digest: str = ""
    """Digest of the ids of the file's parts, in order, once the upload is completed."""

    def status_at(self, now_s: int) -> UploadStatus:
        is_late = self.status is UploadStatus.PENDING and self.expires_s <= now_s
        return UploadStatus.EXPIRED if is_late else self.status

    def document(self, now_s: int) -> dict[str, object]:
        """Upload as OpenAI's API shows it."""
        return {
            "id": self.id,
            "object": "upload",
            "bytes": self.size,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            "filename": self.filename,
            "purpose": "batch",
            "status": self.status_at(now_s),
            "file": None if self.file is None else self.file.document(),
        }


class ClientBatch(Struct, frozen=True, kw_only=True):
    """One batch. Times are seconds since 1970."""

    id: str
    tenant: TenantName
    key: ClientKey | None
    """Key of the client that handed the batch in; None where the gateway needed none."""
    is_token: bool
    """True if the client showed a token, so that no keys file has its key."""
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    created_s: int
    expires_s: int
    metadata: Mapping[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    faults: tuple[LineFault, ...] = ()
    model: str = ""
    total: int = 0
    completed: int = 0
    failed: int = 0
    unrun: int = 0
    """Failed lines that did not run, since the batch was cancelled or its window ended."""
    times: Mapping[str, int] = {}
    """Time of each change of the status, by field of the API."""
    is_expired: bool = False
    """True once the window ended before all lines had run."""

    @property
    def is_of_messages(self) -> bool:
        """True for a batch of Anthropic's API, which OpenAI's does not show."""
        return self.endpoint == MESSAGES_PATH

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def ended_s(self) -> int:
        """Time of the last change of the status, which is the end once the batch has ended."""
        return max(self.times.values(), default=self.created_s)

    @property
    def is_cancelling(self) -> bool:
        return self.status is BatchStatus.CANCELLING

    @property
    def is_checked(self) -> bool:
        """True once the input file was found to be valid; a batch may be cancelled before."""
        return self.status is not BatchStatus.VALIDATING and self.total > 0

    @property
    def result_ids(self) -> tuple[str, str]:
        """Ids of the output and the error file."""
        return (self.output_file_id, self.error_file_id)

    def document(self) -> dict[str, object]:
        """Batch as OpenAI's API shows it."""
        has_files = self.has_ended
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model or None,
            "errors": {"object": "list", "data": self.faults} if self.faults else None,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": self.status,
            "output_file_id": self.output_file_id if has_files and self.completed else None,
            "error_file_id": self.error_file_id if has_files and self.failed else None,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            **{f"{name}_at": self.times.get(f"{name}_at") for name in _TIMED},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }


_TIMED = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def _moved(batch: ClientBatch, status: BatchStatus, now_s: int) -> ClientBatch:
    return replace(batch, status=status, times={**batch.times, f"{status}_at": now_s})


def validated(batch: ClientBatch, model: str, total: int, faults: tuple[LineFault, ...], now_s: int) -> ClientBatch:
    """Batch after its input file was read. One that is cancelled meanwhile stays so."""
    if batch.status is not BatchStatus.VALIDATING and not faults:
        return replace(batch, model=model, total=total)
    status = BatchStatus.FAILED if faults else BatchStatus.IN_PROGRESS
    changed = replace(batch, faults=faults) if faults else replace(batch, model=model, total=total)
    return _moved(changed, status, now_s)


def cancelling(batch: ClientBatch, now_s: int) -> ClientBatch:
    """Batch after its client cancelled it, unless it is past that."""
    is_open = batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    return _moved(batch, BatchStatus.CANCELLING, now_s) if is_open else batch


def lines_over(batch: ClientBatch, now_s: int, *, is_expired: bool) -> ClientBatch:
    """Batch once no further line will run."""
    if batch.status is not BatchStatus.IN_PROGRESS:
        return batch
    return _moved(replace(batch, is_expired=is_expired), BatchStatus.FINALIZING, now_s)


def ended(batch: ClientBatch, completed: int, failed: int, now_s: int, *, unrun: int = 0) -> ClientBatch:
    """Batch once each line has its result in a file."""
    assert completed + failed == batch.total, "one result per line"
    counted = replace(batch, completed=completed, failed=failed, unrun=unrun)
    if batch.status is BatchStatus.CANCELLING:
        return _moved(counted, BatchStatus.CANCELLED, now_s)
    return _moved(counted, BatchStatus.EXPIRED if batch.is_expired else BatchStatus.COMPLETED, now_s)


def given_up(batch: ClientBatch, fault: LineFault, now_s: int, *, unrun: int) -> ClientBatch:
    """Batch that cannot be ended otherwise, with the results that it has."""
    return _moved(replace(batch, unrun=unrun, faults=(fault,)), BatchStatus.FAILED, now_s)


def is_hopeless(batch: ClientBatch, tries: int, now_s: int) -> bool:
    """True if a batch is given up: its window is over, and its last tries met an error of this gateway's own."""
    return tries >= _TRIES_MAX and batch.expires_s <= now_s


def is_at_risk(batch: ClientBatch, now_s: int) -> bool:
    """True if the batch would miss its window at the rate so far, once a tenth of the window is over."""
    window_s, passed_s = batch.expires_s - batch.created_s, now_s - batch.created_s
    if batch.status is not BatchStatus.IN_PROGRESS or passed_s < _RISK_SHARE * window_s:
        return False
    return (batch.completed + batch.failed) * window_s < batch.total * passed_s


def wait_after_error_s(tries: int) -> float:
    """Seconds until a batch is tried again that met an error of this gateway's own in each of so many tries."""
    return min(_WAIT_MAX_S, _WAIT_MIN_S * (1 << min(tries - 1, 16)))


def next_to_check(waiting: Iterable[ClientBatch], turns: Mapping[TenantName, int]) -> ClientBatch | None:
    """Batch whose input file is checked next: the oldest of the tenant whose last turn is the longest ago. None: none
    waits."""
    return min(waiting, key=lambda each: (turns.get(each.tenant, 0), each.created_s, each.id), default=None)


def next_to_run(
    waiting: Iterable[ClientBatch], running: Iterable[ClientBatch], batches_max: int, tenant_max: int
) -> ClientBatch | None:
    """Batch to begin: the oldest of the tenant with the fewest that run. None: there is no room, or none waits."""
    counts: dict[TenantName, int] = {}
    total = 0
    for each in running:
        counts[each.tenant] = counts.get(each.tenant, 0) + 1
        total += 1
    free = [each for each in waiting if counts.get(each.tenant, 0) < tenant_max]
    if total >= batches_max or not free:
        return None
    return min(free, key=lambda each: (counts.get(each.tenant, 0), each.created_s, each.id))
