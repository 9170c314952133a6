from __future__ import annotations

from pathlib import Path

import pytest

from gateway.door import errors
from gateway.door.errors import ClientFault
from gateway.features.batches.content import StoredContent
from tests.support.batch_conformance import stored_file
from tests.support.batches import book_in


@pytest.mark.parametrize(
    ("error", "kind"),
    [(FileNotFoundError("gone"), errors.FILE_NOT_FOUND), (OSError("timeout"), errors.BATCHES_UNAVAILABLE)],
)
async def test_a_file_that_is_missing_is_told_from_one_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: errors.ErrorKind
) -> None:
    def fail(_: str) -> None:
        raise error

    book = book_in(tmp_path)
    monkeypatch.setattr(book.folder, "read", fail)
    with pytest.raises(ClientFault) as told:
        await StoredContent.open(book, [stored_file("file-1")])
    assert told.value.kind is kind
