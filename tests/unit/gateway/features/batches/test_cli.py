from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.features.batches.cli import LookSchedule, batch


def test_a_gateway_is_lost_a_minute_after_its_last_answer() -> None:
    looks = LookSchedule(100.0)
    assert [looks.is_lost(now_s) for now_s in (130.0, 159.0, 160.0)] == [False, False, True]
    looks.reached(150.0)
    assert [looks.is_lost(now_s) for now_s in (209.0, 210.0)] == [False, True]


def test_looks_grow_apart() -> None:
    looks = LookSchedule(0.0)
    waits_s = [looks.next_wait_s() for _ in range(20)]
    assert (waits_s[0], waits_s[-1], waits_s) == (1, 10, sorted(waits_s))


@pytest.mark.parametrize("line", [b"", b"\n \n", b"nonsense\n", b'{"url": "/v1/images"}\n', b'{"url": "\xff"}\n'])
def test_a_file_without_an_api_is_wrong_use(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line)
    refused = CliRunner().invoke(batch, ["submit", str(path)])
    assert (refused.exit_code, "FILE" in refused.stderr) == (2, True)


def test_results_and_errors_go_to_two_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    refused = CliRunner().invoke(batch, ["fetch", "batch_1", "-o", str(path), "--errors", f"{tmp_path}/./x"])
    assert (refused.exit_code, "--errors" in refused.stderr) == (2, True)
