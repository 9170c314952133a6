from __future__ import annotations

import pytest

from gateway.features.batches.runner import _disk_error

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
