from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog import get_logger

from gateway.core.vocabulary import TenantName
from gateway.door.errors import ClientFault
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.intake import BatchIntake
from gateway.request.callers import ClientKey, KeyId
from mesh.clock import Clock
from tests.support.batches import book_in, fail_after

ACME = TenantName("acme")


def intake_of(book: BatchBook) -> BatchIntake:
    """Intake of a gateway whose keys file has no key any more."""
    settings: Any = None
    return BatchIntake(
        BatchesConfig(), settings, book, clock=Clock(), log=get_logger(), key_in_force=lambda key_id: None
    )


def call_of(key: ClientKey) -> Any:
    return SimpleNamespace(caller=SimpleNamespace(tenant=ACME, key=key))


async def test_a_key_that_is_removed_after_the_door_is_no_token(tmp_path: Path) -> None:
    book = book_in(tmp_path)
    await book.open()
    intake = intake_of(book)
    with pytest.raises(ClientFault, match="invalid_api_key"):
        intake.check_key(intake.owner_of(call_of(ClientKey(KeyId("k"), ACME))))
    intake.check_key(intake.owner_of(call_of(ClientKey(KeyId("k"), ACME, is_token=True))))
    await book.close()


async def test_the_error_of_an_upload_is_told_and_not_that_of_removing_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_in(tmp_path)
    await book.open()
    monkeypatch.setattr(book.folder, "drop", fail_after(book.folder.drop))
    with pytest.raises(ClientFault, match="batches_unavailable"):
        async with intake_of(book).holding(ACME, 100):
            raise OSError("the place of files is away")
    await book.close()
