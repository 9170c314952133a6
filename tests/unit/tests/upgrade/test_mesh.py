from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import pytest

from loadgen.demo.processes import DemoFailure
from tests.upgrade import mesh
from tests.upgrade.mesh import until


def condition(*answers: BaseException | bool) -> Callable[[], Awaitable[bool]]:
    """Condition with these answers, of which the last one stays."""
    left: Iterator[BaseException | bool] = iter(answers)

    async def holds() -> bool:
        answer = next(left, answers[-1])
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return holds


async def test_a_process_that_does_not_answer_is_asked_again() -> None:
    await until(condition(TimeoutError(), OSError("unreachable"), aiohttp.ClientError("cut"), False, True), "ready")


async def test_a_condition_that_never_holds_is_told_with_the_last_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_WITHIN_S", 0.0)
    with pytest.raises(DemoFailure, match=r"ready: not within 0 s \(unreachable\)"):
        await until(condition(OSError("unreachable")), "ready")
