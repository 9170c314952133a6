from __future__ import annotations

from pathlib import Path

from controller.history import AuditEntry, OperatorAuditLog


def entry(number: int, **order: object) -> AuditEntry:
    return AuditEntry(
        "2026-03-01T12:00:00.000000Z", "ann", "127.0.0.1", {"order": "freeze", "n": number, **order}, "applied"
    )


async def test_what_was_ordered_is_there_after_a_restart_and_a_line_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"
    history = OperatorAuditLog(path, 1 << 20)
    for number in range(3):
        await history.add(entry(number))
    with path.open("ab") as file:
        file.write(b'{"time": "2026')
    assert [each.order["n"] for each in OperatorAuditLog(path, 1 << 20).last(2)] == [1, 2]
    assert path.stat().st_mode & 0o037 == 0


async def test_a_large_file_is_put_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = OperatorAuditLog(path, 1_000)
    for number in range(50):
        await history.add(entry(number))
    files = sorted(tmp_path.iterdir())  # noqa: ASYNC240 - a small folder
    assert [each.name for each in files] == ["history", "history.1"]
    assert all(each.stat().st_size <= 1_000 for each in files)
    kept = [each.order["n"] for each in OperatorAuditLog(path, 1_000).last(100)]
    assert kept == list(range(50 - len(kept), 50))


async def test_a_disk_that_takes_nothing_is_told_and_the_order_is_shown_all_the_same(tmp_path: Path) -> None:
    history = OperatorAuditLog(tmp_path / "folder" / "history", 1_000)
    (tmp_path / "folder" / "history").unlink()
    (tmp_path / "folder").rmdir()
    await history.add(entry(1))
    assert "cannot be written" in history.fault
    assert [each.order["n"] for each in history.last(5)] == [1]
    (tmp_path / "folder").mkdir()
    await history.add(entry(2))
    assert history.fault == ""


async def test_a_very_long_order_is_kept_by_its_name(tmp_path: Path) -> None:
    history = OperatorAuditLog(tmp_path / "history", 1 << 20)
    await history.add(entry(1, documents="x" * 100_000))
    assert (tmp_path / "history").stat().st_size < 1_000
    assert [each.order for each in history.last(5)] == [{"order": "freeze"}], "in memory as well"
