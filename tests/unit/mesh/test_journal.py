from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.journal import JournalFiles, JournalSettings, JournalUnreadable, complete_lines
from tests.support.disks import full_disk
from tests.support.threads import threads_taken

FIRST_LINE = b"part 0\n"
LINES = [b"%050d\n" % number for number in range(200)]


def settings(folder: Path, *, file_bytes_max: int = 1 << 20, files_max: int = 4) -> JournalSettings:
    return JournalSettings(folder, file_bytes_max, files_max)


def journal_in(settings: JournalSettings, on_stopped: Callable[[str], None]) -> JournalFiles:
    return JournalFiles(settings, "story", lambda part: b"part %d\n" % part, on_stopped)


def lines_in(path: Path) -> list[bytes]:
    return list(complete_lines(path))


def keep(journal: JournalFiles, lines: Iterable[bytes]) -> None:
    for line in lines:
        journal.keep(line)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b"one\ntwo")
    assert lines_in(path) == [b"one\n"]
    with pytest.raises(JournalUnreadable, match="No such file"):
        lines_in(tmp_path / "none.journal")


async def test_what_a_thread_has_yet_to_write_is_there_after_the_end(tmp_path: Path) -> None:
    journal = journal_in(replace(settings(tmp_path), flush_interval_s=0.0), pytest.fail)
    first, *others = LINES
    with threads_taken() as free:
        keep(journal, [first])
        running = asyncio.get_running_loop().create_task(journal.run())
        while journal._buffer:  # noqa: ASYNC110 - taken up by a thread is nothing to wait for
            await asyncio.sleep(0)
        keep(journal, others)
        running.cancel()
        asyncio.get_running_loop().call_soon(free)
        with pytest.raises(asyncio.CancelledError):
            await running
    journal.close()
    assert lines_in(tmp_path / "story-000000.journal") == [FIRST_LINE, first, *others]


def test_no_more_files_are_kept_than_asked_for(tmp_path: Path) -> None:
    journal = journal_in(settings(tmp_path, file_bytes_max=4000, files_max=3), pytest.fail)
    for _ in range(10):
        keep(journal, LINES)
    journal.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(path.stat().st_size < 2 * 4000 for path in files)


async def test_a_failing_disk_ends_the_journal_and_nothing_else(tmp_path: Path) -> None:
    stops: list[str] = []
    folder = tmp_path / "journals"
    journal = journal_in(replace(settings(folder), flush_interval_s=0.0), stops.append)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    keep(journal, LINES)
    await journal.run()
    assert len(stops) == 1
    keep(journal, LINES)
    journal.close()
    assert len(stops) == 1


async def test_a_disk_that_fails_under_a_cancellation_ends_it_before_any_later_line(tmp_path: Path) -> None:
    stops: list[str] = []
    journal = journal_in(settings(tmp_path), stops.append)
    path = tmp_path / "story-000000.journal"
    begun = path.rename(tmp_path / "begun")
    path.symlink_to("/dev/full")
    one, two, *_ = LINES
    with threads_taken() as free:
        keep(journal, [one])
        flushing = asyncio.get_running_loop().create_task(journal.flush())
        await asyncio.sleep(0)
        keep(journal, [two])
        flushing.cancel()
        asyncio.get_running_loop().call_soon(free)
        with pytest.raises(asyncio.CancelledError):
            await flushing
    begun.replace(path)  # gives the disk room again
    journal.close()
    assert lines_in(path) == [FIRST_LINE]
    assert len(stops) == 1
    assert "No space left" in stops[0]


def test_a_disk_that_cannot_keep_up_ends_it_too(tmp_path: Path) -> None:
    stops: list[str] = []
    journal = journal_in(replace(settings(tmp_path), buffer_bytes_max=5000), stops.append)
    keep(journal, LINES)
    assert stops == ["the disk cannot keep up"]


def test_a_folder_that_cannot_be_made_is_known_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        journal_in(settings(tmp_path / "file" / "journals"), pytest.fail)


def test_one_that_a_full_disk_cannot_begin_has_ended_and_names_the_file(tmp_path: Path) -> None:
    stops: list[str] = []
    with full_disk():
        journal = journal_in(settings(tmp_path), stops.append)
    assert [str(tmp_path / "story-000000.journal") in each for each in stops] == [True]
    keep(journal, LINES)
    journal.close()
    assert list(tmp_path.iterdir()) == []
