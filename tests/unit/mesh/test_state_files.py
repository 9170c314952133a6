from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.state_files import STATE_BYTES_MAX, StateFile, StateUnusable


@dataclass(frozen=True)
class Content:
    number: int
    text: str = ""


def state_file(folder: Path, *, kind: str = "test", version: int = 1) -> StateFile[Content]:
    return StateFile(folder / "deep" / "state.json", kind, version, Content)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    assert state_file(tmp_path).read() is None
    for content in (Content(1, "a"), Content(2, "ü\n")):
        state_file(tmp_path).write(content)
        assert state_file(tmp_path).read() == content
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text.replace(b'"number":1', b'"number":2'), "its checksum does not fit"),
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda _: b"", "is damaged"),
        (lambda _: b"\xff\x00", "is damaged"),
        (lambda _: b"{}", "is damaged"),
        (lambda _: b"x" * (STATE_BYTES_MAX + 1), "is larger than 16 MiB"),
    ],
    ids=["changed", "cut off", "empty", "binary", "other JSON", "huge"],
)
def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path, damage: object, told: str) -> None:
    file = state_file(tmp_path)
    file.write(Content(1))
    file.path.write_bytes(damage(file.path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StateUnusable, match=told):
        file.read()


def test_a_file_of_another_kind_or_version_is_not_used(tmp_path: Path) -> None:
    state_file(tmp_path).write(Content(1))
    with pytest.raises(StateUnusable, match="is test of version 1, not test of version 2"):
        state_file(tmp_path, version=2).read()
    with pytest.raises(StateUnusable, match="is test of version 1, not other of version 1"):
        state_file(tmp_path, kind="other").read()


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.path.mkdir(parents=True)
    with pytest.raises(StateUnusable, match="cannot be read"):
        file.read()
    with pytest.raises(OSError, match=r"state\.json"):
        file.write(Content(1))
