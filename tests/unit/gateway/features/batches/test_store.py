from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.vocabulary import TenantName
from gateway.features.batches import store as store_module
from gateway.features.batches.state import StoredFile
from gateway.features.batches.store import BatchStore

FILE = StoredFile(
    id="file-1", tenant=TenantName("acme"), filename="a", purpose="batch", size=1, created_s=1, expires_s=2
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    made = BatchStore(tmp_path / "batches")
    made.open()
    yield made
    made.close()


def upload(store: BatchStore) -> None:
    opened = store.begin_upload(FILE.id)
    opened.write(b"x")
    store.finish_upload(opened, FILE)


def left(store: BatchStore) -> list[str]:
    return [each.name for each in store.path(FILE.id).parent.iterdir()]


def fail(*_: object) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("step", ["row", "folder"])
def test_an_upload_that_cannot_be_kept_leaves_no_file(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    if step == "row":
        monkeypatch.setattr(store, "_write", fail)
    else:
        monkeypatch.setattr(store_module, "_sync_folder", fail)
    with pytest.raises(OSError, match="disk full"):
        upload(store)
    assert left(store) == []
    assert store.files() == []


def test_an_upload_that_was_never_handed_over_is_dropped(store: BatchStore) -> None:
    store.begin_upload(FILE.id).close()
    store.drop_upload(None, FILE.id)
    assert left(store) == []


def test_a_file_is_deleted_where_the_database_cannot_grow(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(store)
    with monkeypatch.context() as patched:
        patched.setattr(store, "_write", fail)
        with pytest.raises(OSError, match="disk full"):
            store.delete_file(FILE.id)
    assert left(store) == []
    store.delete_file(FILE.id)
    assert store.files() == []
