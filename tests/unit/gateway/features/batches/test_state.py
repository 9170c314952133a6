from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import TenantName
from gateway.features.batches.state import (
    INTERNAL_ERROR,
    BatchStatus,
    ClientBatch,
    LineFault,
    UploadInParts,
    UploadStatus,
    cancelling,
    ended,
    given_up,
    is_at_risk,
    is_hopeless,
    lines_over,
    next_to_check,
    next_to_run,
    validated,
    wait_after_error_s,
)
from tests.support.batches import client_batch

DAY_S = 86_400
FAULT = LineFault("invalid_json_line", "no", line=2)


def test_an_upload_expires_unless_it_has_ended() -> None:
    upload = UploadInParts(
        id="upload_1", tenant=TenantName("acme"), filename="a", size=1, created_s=0, expires_s=3600, keep_s=7200
    )
    assert [upload.document(now_s)["status"] for now_s in (0, 3599, 3600)] == ["pending", "pending", "expired"]
    for status in (UploadStatus.COMPLETED, UploadStatus.CANCELLED):
        assert replace(upload, status=status).status_at(9999) is status


def running(total: int = 10) -> ClientBatch:
    return validated(client_batch(), "m", total, (), 1)


def test_a_batch_completes() -> None:
    over = lines_over(running(), 2, is_expired=False)
    assert over.status is BatchStatus.FINALIZING
    done = ended(over, 9, 1, 3)
    told = done.document()
    assert (told["status"], told["output_file_id"], told["error_file_id"]) == ("completed", "file-out", "file-errors")
    assert [told[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")] == [0, 1, 2, 3]
    assert told["request_counts"] == {"total": 10, "completed": 9, "failed": 1}
    assert (done.ended_s, client_batch(created_s=7).ended_s) == (3, 7)
    assert ended(over, 10, 0, 3).document()["error_file_id"] is None


def test_a_batch_with_faults_fails() -> None:
    failed = validated(client_batch(), "m", 10, (FAULT,), 1)
    assert (failed.status, failed.total, failed.has_ended) == (BatchStatus.FAILED, 0, True)
    assert failed.document()["errors"] == {"object": "list", "data": (FAULT,)}


def test_a_batch_expires_and_says_so_over_a_restart() -> None:
    over = lines_over(running(), 2, is_expired=True)
    assert lines_over(over, 9, is_expired=False) == over
    assert ended(over, 4, 6, 3).status is BatchStatus.EXPIRED


def test_a_cancelled_batch_stays_cancelled() -> None:
    early = cancelling(client_batch(), 1)
    assert validated(early, "m", 10, (), 2).status is BatchStatus.CANCELLING
    assert validated(early, "m", 10, (FAULT,), 2).status is BatchStatus.FAILED
    late = lines_over(cancelling(running(), 2), 3, is_expired=False)
    assert ended(late, 4, 6, 4).status is BatchStatus.CANCELLED
    done = ended(lines_over(running(), 2, is_expired=False), 10, 0, 3)
    assert cancelling(done, 4) == done


def test_each_line_has_one_result() -> None:
    with pytest.raises(AssertionError):
        ended(lines_over(running(), 2, is_expired=False), 9, 0, 3)


def test_files_are_shown_once_the_batch_has_ended() -> None:
    shown = replace(running(), completed=5).document()
    assert (shown["output_file_id"], shown["error_file_id"]) == (None, None)


def test_a_window_is_at_risk_behind_the_rate_that_it_needs() -> None:
    half = replace(running(100), completed=49)
    assert [is_at_risk(half, now_s) for now_s in (DAY_S // 20, DAY_S // 2 - 1000, DAY_S // 2)] == [False, False, True]
    assert not is_at_risk(replace(half, completed=50), DAY_S // 2)


def test_the_tenant_with_the_fewest_runs_next() -> None:
    acme = [client_batch(f"batch_{number}", created_s=number) for number in range(4)]
    zenith = client_batch("batch_z", "zenith", created_s=9)
    waiting = [*acme[1:], zenith]
    assert next_to_run(waiting, [], 8, 2) == acme[1]
    assert next_to_run(waiting, acme[:1], 8, 2) == zenith
    assert next_to_run(acme[2:], acme[:2], 8, 2) is None
    assert next_to_run(waiting, acme[:1], 1, 2) is None


def test_input_files_are_checked_by_turns_of_tenants() -> None:
    waiting = [client_batch(f"batch_{number}", created_s=number) for number in range(4)]
    waiting += [client_batch("batch_z", "zenith", created_s=9), client_batch("batch_y", "zenith", created_s=8)]
    turns: dict[TenantName, int] = {}
    order = []
    while (chosen := next_to_check(waiting, turns)) is not None:
        waiting.remove(chosen)
        order.append(chosen.id)
        turns[chosen.tenant] = len(order)
    assert order == ["batch_0", "batch_y", "batch_1", "batch_z", "batch_2", "batch_3"]


def test_a_batch_that_was_not_checked_holds_no_line() -> None:
    assert not client_batch().is_checked
    assert not cancelling(client_batch(), 1).is_checked
    assert running().is_checked


def test_a_batch_is_given_up_after_some_tries_past_its_window() -> None:
    batch = replace(running(), completed=4, failed=2)
    assert [is_hopeless(batch, tries, DAY_S) for tries in (4, 5)] == [False, True]
    assert not is_hopeless(batch, 1_000, DAY_S - 1)
    told = given_up(batch, INTERNAL_ERROR, DAY_S, unrun=1).document()
    assert (told["status"], told["failed_at"], told["output_file_id"]) == ("failed", DAY_S, "file-out")
    assert told["request_counts"] == {"total": 10, "completed": 4, "failed": 2}
    assert told["errors"]["data"][0].code == "internal_error"  # type: ignore[index]


def test_waits_after_errors_double_up_to_a_limit() -> None:
    assert [wait_after_error_s(tries) for tries in (1, 2, 5, 6, 1_000)] == [30, 60, 480, 900, 900]
