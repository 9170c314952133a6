"""Learnt ratios outlive a restart, and untrusted ones do not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from gateway.core.features.lengths.config import TokenBudgetConfig
from gateway.core.features.lengths.events import TokenBudgetSnapshot
from gateway.core.features.lengths.token_budget import TokenBudget
from gateway.core.vocabulary import GatewayId
from gateway.features.lengths.token_budget import TokenBudgetKeeper
from tests.support.core import profile

GATEWAY = GatewayId("us-1")


def budget(answers: int = 0) -> TokenBudget:
    made = TokenBudget(TokenBudgetConfig())
    for _ in range(answers):
        made.observe(replace(profile("r"), text_bytes=4000), 1300, 50)
    return made


def keeper(folder: Path, live: TokenBudget) -> TokenBudgetKeeper:
    return TokenBudgetKeeper(GATEWAY, folder, live, structlog.get_logger())


def restored(folder: Path) -> list[TokenBudgetSnapshot]:
    taken: list[TokenBudgetSnapshot] = []
    keeper(folder, budget()).restore(taken.append)
    return taken


async def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    live = budget(30)
    await keeper(tmp_path, live).save()
    assert restored(tmp_path) == [live.snapshot()]


async def test_it_is_saved_once_more_at_the_end(tmp_path: Path) -> None:
    live = budget(3)
    running = asyncio.ensure_future(keeper(tmp_path, live).run(3600 * 10**9))  # noqa: TID251 - it is ended below
    await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert restored(tmp_path) == [live.snapshot()]


async def test_nothing_is_written_while_nothing_is_learnt(tmp_path: Path) -> None:
    await keeper(tmp_path, budget()).save()
    assert restored(tmp_path) == []


async def test_a_damaged_file_is_told_of_and_not_used(tmp_path: Path) -> None:
    await keeper(tmp_path, budget(3)).save()
    path = tmp_path / f"{GATEWAY}.token_budget.json"
    path.write_bytes(path.read_bytes().replace(b"4000", b"4001").replace(b"m", b"n"))
    with capture_logs() as logs:
        assert restored(tmp_path) == []
    assert logs[0]["event"] == "token_budget_state_unusable"


async def test_a_disk_that_takes_nothing_is_told_of_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("in its way")
    kept = keeper(folder, budget(3))
    with capture_logs() as logs:
        await kept.save()
    assert logs[0]["event"] == "token_budget_state_not_persisted"
    folder.unlink()
    await kept.save()
    assert len(restored(folder)) == 1
