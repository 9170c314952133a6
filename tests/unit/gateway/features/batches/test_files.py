from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.vocabulary import TenantName
from gateway.features.batches import files as files_module
from gateway.features.batches.files import FolderFiles
from gateway.features.batches.state import StoredFile
from tests.support.batches import book_in

FILE = StoredFile(
    id="file-1", tenant=TenantName("acme"), filename="a", purpose="batch", size=1, created_s=1, expires_s=2
)


NAMED, OTHER = f"file-{'a' * 24}", f"file-{'b' * 24}"
STRANGE = ["notes.txt", "file-1", f"{OTHER}b", f"old-{OTHER}", f"file-{'B' * 24}"]
"""Names that no gateway gives to a file of batches."""


def fail(*_: object) -> None:
    raise OSError("disk full")


def left(folder: Path) -> list[str]:
    return [each.name for each in (folder / "files").iterdir()]


@pytest.mark.parametrize("step", ["row", "folder"])
async def test_an_upload_that_cannot_be_kept_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    book = book_in(tmp_path)
    await book.open()
    if step == "row":
        monkeypatch.setattr(book.store, "put_file", fail)
    else:
        monkeypatch.setattr(files_module, "_sync_folder", fail)
    upload = book.folder.begin(FILE.id)
    upload.write(b"x")
    with pytest.raises(OSError, match="disk full"):
        await book.keep_file(upload, FILE)
    assert (left(tmp_path), book.files) == ([], {})
    await book.close()


async def test_a_file_is_deleted_where_the_database_cannot_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_in(tmp_path)
    await book.open()
    await book.keep_file(book.folder.begin(FILE.id), FILE)
    with monkeypatch.context() as patched:
        patched.setattr(book.store, "delete_file", fail)
        with pytest.raises(OSError, match="disk full"):
            await book.delete_file(FILE.id)
    assert left(tmp_path) == []
    await book.delete_file(FILE.id)
    assert book.files == {}
    await book.close()


def opened(folder: Path) -> FolderFiles:
    files = FolderFiles(folder)
    files.open()
    return files


def kept(files: FolderFiles, name: str, data: bytes = b"x") -> None:
    upload = files.begin(name)
    upload.write(data)
    files.finish(upload, name)


def test_an_upload_that_was_never_handed_over_is_dropped(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.begin(FILE.id).file.close()
    files.drop(None, FILE.id)
    assert left(tmp_path) == []


def test_a_file_is_read_from_an_offset(tmp_path: Path) -> None:
    files = opened(tmp_path)
    kept(files, "a", b"0123\n4567\n")
    with files.read("a", 5) as file:
        assert list(file) == [b"4567\n"]
    with pytest.raises(FileNotFoundError):
        files.read("b")


def test_remains_of_a_crash_are_deleted_where_no_other_gateway_writes(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for name in (NAMED, f"{NAMED}.2-7-ab", OTHER, f"{OTHER}.2-7-ab"):
        kept(files, name)
    files.begin(f"file-{'c' * 24}").file.close()
    files.sweep(lambda: [NAMED], is_shared=True)
    assert len(left(tmp_path)) == 5, "another gateway may be about to name them"
    files.sweep(lambda: [NAMED], is_shared=False)
    assert sorted(left(tmp_path)) == [NAMED, f"{NAMED}.2-7-ab"]


def test_files_that_are_not_of_batches_stay(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for name in STRANGE:
        kept(files, name)
    files.sweep(list, is_shared=False)
    assert sorted(left(tmp_path)) == sorted(STRANGE)


def test_old_remains_are_deleted_where_other_gateways_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(tmp_path)
    kept(files, OTHER)
    monkeypatch.setattr(files_module, "STALE_S", -1)
    files.sweep(lambda: [OTHER], is_shared=True)
    assert left(tmp_path) == [OTHER]
    files.sweep(list, is_shared=True)
    assert left(tmp_path) == []
