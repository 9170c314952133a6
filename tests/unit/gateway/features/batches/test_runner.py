from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog import get_logger

from gateway.features.batches.classes import LineClasses
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.runner import BatchRunner, InputUnreadable, _disk_error, _of_input
from gateway.features.batches.state import validated
from mesh.clock import Clock
from tests.support.batches import SettableClock, book_in, client_batch

FULL = OSError("full")
DEFECT = ValueError("defect")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (FULL, FULL),
        (DEFECT, None),
        (ExceptionGroup("", [FULL]), FULL),
        (ExceptionGroup("", [ExceptionGroup("", [FULL]), OSError("other")]), FULL),
        (ExceptionGroup("", [FULL, DEFECT]), None),
    ],
)
def test_only_errors_of_the_disk_stop_all_batches(error: Exception, found: OSError | None) -> None:
    assert _disk_error(error) is found


def test_an_input_file_that_goes_missing_stops_its_batch_alone() -> None:
    with pytest.raises(InputUnreadable) as stopped, _of_input():
        raise FileNotFoundError("file-in")
    assert _disk_error(stopped.value) is None


def late_runner(folder: Path, tenants: list[str]) -> BatchRunner:
    """Runner late in the window of batches that have run for a while without a result, one of each of these tenants.
    Four lines may be urgent at once."""
    clock, now_ns = SettableClock(), Clock.now_ns()
    clock.ahead_s = 20 * 3600
    book = book_in(folder)
    runner = BatchRunner(BatchesConfig(requests_max=8, urgent_share=0.5), book, clock, get_logger())
    for number, tenant in enumerate(tenants):
        handed_in = client_batch(f"batch_{number}", tenant, created_s=Clock.wall_ns() // 1_000_000_000)
        book.batches[handed_in.id] = validated(handed_in, "m", 100, (), handed_in.created_s)
        book.rates[handed_in.id] = LineRate(now_ns - 600_000_000_000)
        runner._classes[handed_in.id] = LineClasses()
    return runner


def test_tenants_share_the_urgent_places(tmp_path: Path) -> None:
    runner = late_runner(tmp_path, ["acme", "acme", "zenith"])
    runner._classes["batch_0"].urgent = 2
    assert [runner._may_be_urgent(f"batch_{number}") for number in range(3)] == [False, False, True]
    zenith = runner._book.batches["batch_2"]
    runner._book.batches["batch_2"] = replace(zenith, completed=zenith.total)
    assert [runner._may_be_urgent(f"batch_{number}") for number in range(3)] == [True, True, False]
    runner._classes["batch_1"].urgent = 2
    assert not any(runner._may_be_urgent(f"batch_{number}") for number in range(3))


def test_a_batch_that_has_just_begun_has_no_urgent_line(tmp_path: Path) -> None:
    runner = late_runner(tmp_path, ["acme"])
    assert runner._may_be_urgent("batch_0")
    runner._book.rates["batch_0"] = LineRate(Clock.now_ns())
    assert not runner._may_be_urgent("batch_0")
