"""Data files are read as the shapes that the studies name, and other content is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from loadgen.studies import data
from loadgen.studies.data import read_data


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    values: dict[int, float]


def test_a_file_is_read_as_the_named_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_FOLDER", tmp_path)
    (tmp_path / "rows.yaml").write_text('- name: one\n  values: {"4": 0.5}\n')
    assert read_data("rows.yaml", tuple[Row, ...]) == (Row("one", {4: 0.5}),)
    (tmp_path / "rows.yaml").write_text("- name: one\n")
    with pytest.raises(msgspec.ValidationError, match="values"):
        read_data("rows.yaml", tuple[Row, ...])
    (tmp_path / "rows.yaml").write_text('- name: one\n  values: {}\n  vales: {"4": 0.5}\n')
    with pytest.raises(msgspec.ValidationError, match="vales"):
        read_data("rows.yaml", tuple[Row, ...])
