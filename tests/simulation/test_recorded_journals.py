"""Journals that an earlier version wrote are replayed by the current one to equal effects."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gateway.records.journal import replay
from tests.digests.journals import RECORDED, path_of


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_journal_replays_to_equal_effects(name: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(gzip.decompress(path_of(name).read_bytes()))
    report = replay([journal])
    assert report.divergence is None
    assert report.steps > 150
