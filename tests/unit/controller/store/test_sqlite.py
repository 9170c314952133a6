from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.store.sqlite import SqliteStore
from controller.store.store import Store, StoreLost, StoreTaken, StoreUnavailable, StoreUnusable
from tests.support.store_conformance import StoreConformance

ROOT = Path(__file__).parents[4]
WRITER = """
import asyncio, sys
from pathlib import Path
from controller.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    holding = await store.acquire(f"process {sys.argv[2]}")
    number = int((await store.read()).documents.get("a", b"0"))
    while True:
        number += 1
        await store.write(holding, {name: str(number).encode() for name in "abc"})
        print(number, flush=True)

asyncio.run(main())
"""


class TestConformance(StoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "deep" / "er" / "controller.db"

    async def open(self) -> Store:
        return await SqliteStore.open(self.path)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "controller.db")
    yield store
    await store.close()


async def test_files_are_not_for_everybody(store: SqliteStore) -> None:
    await store.acquire("one")
    for path in store.path.parent.iterdir():
        assert not stat.S_IMODE(path.stat().st_mode) & 0o037, path.name


class TestKilled:
    async def test_whenever_it_is_killed_what_was_answered_is_there_and_nothing_is_half_done(
        self, tmp_path: Path
    ) -> None:
        """Kills come at random between two writes or within one, from a fixed seed."""
        path = tmp_path / "controller.db"
        rng = random.Random(3)
        answered = 0
        for life in range(6):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", WRITER, str(path), str(life), cwd=ROOT, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 12)):
                answered = int(await process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            rest = (await process.stdout.read()).split()
            await process.wait()
            answered = int(rest[-1]) if rest and rest[-1].isdigit() else answered
            store = await SqliteStore.open(path)
            documents = (await store.read()).documents
            await store.close()
            assert len(set(documents.values())) == 1
            assert int(documents["a"]) in (answered, answered + 1)

    async def test_a_second_process_is_told_who_has_it_and_takes_over_when_that_is_killed(
        self, tmp_path: Path, store: SqliteStore
    ) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(store.path), "7", cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        with pytest.raises(StoreTaken, match="process 7"):
            await store.acquire("this one")
        os.kill(process.pid, signal.SIGKILL)
        await process.stdout.read()
        await process.wait()
        assert (await store.acquire("this one")).token == 2


class TestTrouble:
    async def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "controller.db"
        path.write_bytes(b"no database at all" * 100)
        with pytest.raises(StoreUnusable, match=r"controller\.db: file is not a database"):
            await SqliteStore.open(path)

    async def test_somebody_elses_database(self, tmp_path: Path) -> None:
        path = tmp_path / "controller.db"
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE theirs (x)")
        other.close()
        with pytest.raises(StoreUnusable, match="not a store of a controller"):
            await SqliteStore.open(path)

    async def test_one_of_a_later_format(self, tmp_path: Path) -> None:
        path = tmp_path / "controller.db"
        await (await SqliteStore.open(path)).close()
        with sqlite3.connect(path) as later:
            later.execute("PRAGMA user_version = 99")
        later.close()
        with pytest.raises(StoreUnusable, match="format 99, and this controller reads 1"):
            await SqliteStore.open(path)

    async def test_pages_that_were_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "controller.db"
        store = await SqliteStore.open(path)
        holding = await store.acquire("one")
        await store.write(holding, {f"n{number}": bytes(1_000) for number in range(200)})
        await store.close()
        with path.open("r+b") as file:
            file.seek(3 * 4096)
            file.write(random.Random(1).randbytes(20 * 4096))
        with pytest.raises(StoreUnusable, match=r"controller\.db"):
            await SqliteStore.open(path)

    async def test_a_full_disk_changes_nothing_and_is_survived(self, store: SqliteStore) -> None:
        holding = await store.acquire("one")
        await store.write(holding, {"a": b"1"})
        connection = store._opened()
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreUnavailable, match="full"):
            await store.write(holding, {"a": b"2", "b": bytes(1 << 20)})
        assert (await store.read()).documents == {"a": b"1"}
        connection.execute("PRAGMA max_page_count = 100000")
        await store.write(holding, {"a": b"3"})
        assert (await store.read()).documents == {"a": b"3"}

    async def test_a_file_that_may_only_be_read(self, tmp_path: Path) -> None:
        path = tmp_path / "controller.db"
        store = await SqliteStore.open(path)
        store._opened().execute("PRAGMA query_only = 1")
        with pytest.raises(StoreUnavailable, match="readonly"):
            await store.acquire("one")
        store._opened().execute("PRAGMA query_only = 0")
        await store.acquire("one")
        await store.close()

    async def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StoreUnavailable, match=r"Not a directory|File exists"):
            await SqliteStore.open(tmp_path / "file" / "controller.db")


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_file_that_is_not_the_one_that_was_opened_takes_no_write(tmp_path: Path, replaced: bool) -> None:
    """SQLite would go on writing to the file that has lost its name, and report success."""
    path = tmp_path / "controller.db"
    store = await SqliteStore.open(path)
    holding = await store.acquire("one")
    await store.write(holding, {"a": b"1"})
    path.rename(tmp_path / "moved.db")
    if replaced:
        path.write_bytes((tmp_path / "moved.db").read_bytes())
    for late in (store.write(holding, {"a": b"2"}), store.rise(holding, 7)):
        with pytest.raises(StoreLost, match="not the file any more"):
            await late
    await store.close()
