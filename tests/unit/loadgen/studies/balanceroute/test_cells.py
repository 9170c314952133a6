"""Cells that were played are not played again; changed ones are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.kernel.decode_config import DecodePolicyName
from loadgen.studies.balanceroute import cells, world
from loadgen.studies.balanceroute.cells import play_settings, remembered
from loadgen.studies.balanceroute.world import Setting
from loadgen.traces.files import TraceError
from tests.support.traces import published

SETTING = Setting("prompts", DecodePolicyName.ROUND_ROBIN, workers=2, batch=2, requests=10)


def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, int]] = []
    first = play_settings([SETTING, SETTING], tmp_path, None, processes=1)
    monkeypatch.setattr(world, "play", lambda *_: {"gap": -1.0})
    other = replace(SETTING, seed=2)
    again = play_settings([SETTING, other], tmp_path, None, processes=1, on_progress=lambda *at: done.append(at))
    assert again == {SETTING: first[SETTING], other: {"gap": -1.0}}
    assert done == [(1, 2), (2, 2)]


def test_another_file_is_another_cell(tmp_path: Path) -> None:
    folder = published(tmp_path)
    setting = replace(SETTING, load="mooncake")
    before = cells._key_of(setting, "code", folder)
    cells._files_of.cache_clear()
    (file,) = folder.glob("mooncake/*.jsonl")
    file.write_text(file.read_text() + file.read_text())
    assert cells._key_of(setting, "code", folder) != before


def test_a_missing_file_is_told_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="mooncake"):
        play_settings([replace(SETTING, load="mooncake")], tmp_path, None, processes=1)


def test_a_text_is_made_once_of_the_same_files(tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> str:
        made.append("made")
        return "a table"

    for folder in (None, None, published(tmp_path)):
        assert remembered("x", cells.__name__, tmp_path / "cache", folder, make) == "a table"
    assert len(made) == 2
