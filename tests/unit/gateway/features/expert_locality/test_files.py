from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.features.expert_locality.artifact import digest_of
from gateway.features.expert_locality.files import eldr_file, read_comparer, read_eldr
from mesh.state_files import StateUnusable
from tests.support.locality import artifact_of

GOOD = artifact_of([[1, 0], [0, 1]])


def test_an_artifact_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    eldr_file(path).write(GOOD)
    assert read_eldr(path) == GOOD
    assert read_comparer(path).digest == digest_of(GOOD)


def test_one_that_is_not_there_cut_off_or_tampered_with_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(StateUnusable, match="there is no such file"):
        read_comparer(path)
    eldr_file(path).write(GOOD)
    text = path.read_bytes()
    for spoilt, fault in (
        (text[:-20], "is damaged"),
        (text.replace(b'"clusters":2', b'"clusters":9'), "checksum"),
        (b"\x80\x04\x95", "is damaged"),
        (text.replace(b"expert locality", b"decode predictor"), "not expert locality of version 1"),
    ):
        path.write_bytes(spoilt)
        with pytest.raises(StateUnusable, match=fault):
            read_comparer(path)
    eldr_file(path).write(replace(GOOD, clusters=3))
    with pytest.raises(StateUnusable, match=r"a.json: centroids: 16 bytes"):
        read_comparer(path)
