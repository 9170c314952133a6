"""Reports of a soak that are missing or cut."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from loadgen.studies.outside.outcomes import SOAK, SOAK_KEPT, SoakOutcome, kept_soak
from loadgen.studies.outside.soak import KeptSoak, SoakError, SoakKill

ERROR = {
    "metadata": {"session_num": 1, "request_start_ns": 5, "request_end_ns": 7},
    "error": {"type": "ClientPayloadError", "message": "gone"},
}
COUNTS = {"request_count": 9, "total_usage_prompt_tokens": 90, "total_usage_completion_tokens": 45}
EXPORT = {
    "error_summary": [{"error_details": ERROR["error"], "count": 1}],
    **{name: {"avg": value} for name, value in COUNTS.items()},
}
RECORDS, TOTALS = "profile_export.jsonl", "profile_export_aiperf.json"


def keep(folder: Path) -> Path:
    """Keep a soak as it was kept before a kill told whether a process was ready. Returns its folder."""
    soak = asdict(
        KeptSoak(60.0, "1", {}, "aiperf", 0, 1, 9.0, [SoakKill("e", 1, 2, 3, 4, None)], [], [], {}, ["a", "b"])
    )
    del soak["kills"][0]["is_ready"]
    where = folder / SOAK
    where.mkdir()
    (where / SOAK_KEPT).write_text(json.dumps(soak))
    (where / RECORDS).write_text(f"{json.dumps(ERROR)}\n")
    (where / TOTALS).write_text(json.dumps(EXPORT))
    return where


def kept_in(folder: Path) -> SoakOutcome:
    found = kept_soak(folder)
    assert found is not None
    return found


def test_a_whole_report_is_read(tmp_path: Path) -> None:
    keep(tmp_path)
    found = kept_in(tmp_path)
    assert (found.unread, found.counts.failed) == ("", 1)
    assert found.errors == [SoakError(5, 7, 1, "ClientPayloadError: gone")]
    assert found.soak.kills == [SoakKill("e", 1, 2, 3, 4, None)]


@pytest.mark.parametrize(("name", "text", "reason"), [
    (RECORDS, None, "FileNotFoundError: "),
    (RECORDS, f'{json.dumps(ERROR)}\n{{"metadata": {{', "JSONDecodeError: "),
    (RECORDS, "null\n", "AttributeError: "),
    (TOTALS, None, "ValueError: no export"),
    (TOTALS, "{}", "ValueError: no avg of request_count"),
])  # fmt: skip
def test_a_report_that_cannot_be_read_has_a_reason(name: str, text: str | None, reason: str, tmp_path: Path) -> None:
    file = keep(tmp_path) / name
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    found = kept_in(tmp_path)
    assert found.unread.startswith(reason)
    assert found.errors == []
    assert found.soak.seconds == 60.0
