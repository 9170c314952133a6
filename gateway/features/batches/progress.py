"""Progress of batches for operators: those that have not ended, the one with the nearest end of its window first."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.vocabulary import TenantName
from gateway.features.batches.book import BatchBook
from gateway.features.batches.forecast import expected_end_s
from gateway.features.batches.state import BatchStatus, ClientBatch, is_at_risk
from gateway.features.batches.status import BatchesView, BatchView
from mesh.page.rows import ColumnShown, TableShown

SHOWN_MAX = 100
_COLUMNS = (
    ColumnShown("Batch"),
    ColumnShown("Tenant"),
    ColumnShown("Status"),
    ColumnShown("Lines", "number"),
    ColumnShown("Done", "number"),
    ColumnShown("Expected end (UTC)", "time"),
    ColumnShown("Window ends (UTC)", "time"),
)
TenantLabel = Callable[[TenantName], str]
"""Name of a tenant as operators may see it."""


def batches_view(book: BatchBook, stopped: int, label: TenantLabel, now_s: int, now_ns: int) -> BatchesView:
    """State of all batches, with the first of those that have not ended."""
    unfinished = [each for each in book.batches.values() if not each.has_ended]
    unfinished.sort(key=lambda each: (each.expires_s, each.id))
    return BatchesView(
        batches=[_view(each, book, label, now_s, now_ns) for each in unfinished[:SHOWN_MAX]],
        left_out=max(0, len(unfinished) - SHOWN_MAX),
        at_risk=sum(is_at_risk(each, now_s) for each in book.not_elsewhere()),
        stopped=stopped,
    )


def _view(batch: ClientBatch, book: BatchBook, label: TenantLabel, now_s: int, now_ns: int) -> BatchView:
    done = batch.completed + batch.failed
    rate = book.rates.get(batch.id)
    expected_s = None
    if rate is not None and batch.status is BatchStatus.IN_PROGRESS:
        expected_s = expected_end_s(batch.total - done, rate.per_second(now_ns), now_s)
    return BatchView(
        id=batch.id,
        tenant=label(batch.tenant),
        status=str(batch.status),
        lines=batch.total,
        done=done,
        expected_in_s=None if expected_s is None else expected_s - now_s,
        window_left_s=batch.expires_s - now_s,
    )


def page_table(view: BatchesView, now_s: int) -> TableShown:
    """Table of the operators' page."""
    rows = [
        (
            each.id,
            each.tenant,
            each.status.replace("_", " "),
            each.lines,
            each.done,
            None if each.expected_in_s is None else (now_s + each.expected_in_s) * 1000,
            (now_s + each.window_left_s) * 1000,
        )
        for each in view.batches
    ]
    return TableShown("batches", "Batches", "No batch waits or runs.", _COLUMNS, rows, view.left_out)
