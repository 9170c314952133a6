"""Files of seats: whole, none of an earlier fit, and an index beside a complete set alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loadgen.fit.seats import INDEX, write_seats


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_fit_with_fewer_clusters_leaves_no_seat_of_the_earlier_one(tmp_path: Path) -> None:
    write_seats(tmp_path, [{"a": seat} for seat in range(3)], "first", "sglang")
    (tmp_path / "seat-of-mine.json").write_text("{}")
    write_seats(tmp_path, [{"b": 0}, {"b": 1}], "second", "sglang")
    assert names(tmp_path) == [INDEX, "seat-0.json", "seat-1.json", "seat-of-mine.json"]
    assert json.loads((tmp_path / "seat-1.json").read_text()) == {"b": 1}
    index = json.loads((tmp_path / INDEX).read_text())
    assert index == {"artifact": "second", "engine": "sglang", "seats": ["seat-0.json", "seat-1.json"]}


def test_a_write_that_fails_leaves_whole_files_and_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_seats(tmp_path, [{"a": 0}, {"a": 1}], "first", "sglang")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_seats(tmp_path, [{"b": 0}, {"b": 1}], "second", "sglang")
    assert caught.value.filename == str(tmp_path / "seat-0.json.new")
    assert json.loads((tmp_path / "seat-0.json").read_text()) == {"a": 0}
    assert INDEX not in names(tmp_path)
