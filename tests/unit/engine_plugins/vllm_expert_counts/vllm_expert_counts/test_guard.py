from __future__ import annotations

import pytest

from vllm_expert_counts.guard import Guard


def test_what_works_goes_through() -> None:
    assert Guard("worker").run(lambda: 5, 0) == 5


def test_what_fails_is_told_once_and_never_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    guard, tries = Guard("worker"), []

    def fail() -> int:
        tries.append(1)
        raise KeyError("block 7")

    assert [guard.run(fail, 3) for _ in range(4)] == [3, 3, 3, 3]
    assert (len(tries), guard.is_on) == (1, False)
    assert caplog.text.count("expert counts are off in the worker: KeyError: 'block 7'") == 1
    assert "Traceback" in caplog.text
