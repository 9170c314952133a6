from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.faults import TOLD_MAX, FileError, FileFault, KeyFaults
from mesh.settings import FileModel
from mesh.yaml_file import YamlFile, read_yaml

TEXT = """\
name: a
items:
  - {x: 1}
  - x: 2
    y:
      z: NO
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str, *, is_plain: bool = False) -> YamlFile:
    return read_yaml(written(folder, text), is_plain=is_plain)


def fault(folder: Path, text: str, *, is_plain: bool = False) -> str:
    with pytest.raises(FileError) as caught:
        read(folder, text, is_plain=is_plain)
    return str(caught.value)


def test_each_key_knows_its_line(tmp_path: Path) -> None:
    file = read(tmp_path, TEXT)
    assert file.content == {"name": "a", "items": [{"x": 1}, {"x": 2, "y": {"z": "NO"}}]}
    lines = {"name": 1, "items": 2, "items[0]": 3, "items[0].x": 3, "items[1].x": 4, "items[1].y.z": 6}
    assert {key: file.line_of(key) for key in lines} == lines


def test_a_key_that_is_not_written_stands_where_it_would(tmp_path: Path) -> None:
    file = read(tmp_path, TEXT)
    assert [file.line_of(key) for key in ("items[1].y.other", "items[1].w.v", "items[7].x", "none", "")] == [
        5, 4, 2, None, None,
    ]  # fmt: skip


def test_scalars_are_read_without_surprises(tmp_path: Path) -> None:
    text = "[NO, yes, 08:30, 0x10, 1e3, 007, 7, -7, 1.5, true, ~, null, 2026-01-01, '7', !!str 7, 99999999999999999999]"
    assert read(tmp_path, text).content == [
        "NO", "yes", "08:30", "0x10", "1e3", "007", 7, -7, 1.5, True, None, None, "2026-01-01", "7", "7",
        "99999999999999999999",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: {c: 1, c: 2}\n", "line 2: b.c: is written twice"),
        ("a: 1\n\na: 2\n", "line 3: a: is written twice"),
        ("a:\n  7: x\n", "line 2: a: a key here is not text; put it in quotes"),
        ("a: [\n", "line 2: while parsing a flow node: expected the node content, but found '<stream end>'"),
        ("a: !!int x\n", "line 1: a: is not what its tag says"),
        ("a: !x 1\n", "line 1: a: has a tag that is not known here: text that begins with ! is put in quotes"),
        ("a: *x\n", "line 1: found undefined alias"),
        ("a: !x!y z\n", "line 1: while parsing a node: found undefined tag handle"),
        ("[" * 40, "line 1: nested too deeply"),
        ("a: &a [*a]\n", f"line 1: a{'[0]' * 32}: nested too deeply, or repeated too often by aliases"),
    ],
)
def test_a_fault_names_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    assert fault(tmp_path, text) == f"file.yaml: {expected}"


def test_faults_without_end_are_counted(tmp_path: Path) -> None:
    told = str(FileError(tmp_path / "file.yaml", [FileFault(f"x{number}", "is odd") for number in range(TOLD_MAX + 7)]))
    assert len(told.splitlines()) == TOLD_MAX + 1
    assert told.endswith("file.yaml: 7 more faults")


def test_a_fault_is_one_line_with_an_end() -> None:
    assert str(FileFault("a\nb\x1b[2J", "is odd")) == r"a\nb\x1b[2J: is odd"
    assert len(str(FileFault("a", "x" * 10_000))) < 5000


def test_aliases_repeat_but_not_without_end(tmp_path: Path) -> None:
    assert read(tmp_path, "a: &a {x: 1}\nb: *a\n").content == {"a": {"x": 1}, "b": {"x": 1}}
    assert "anchors and aliases" in fault(tmp_path, "a: &a {x: 1}\nb: *a\n", is_plain=True)
    laughs = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    assert "repeated too often" in fault(tmp_path, f"a0: &a0 [ha]\n{laughs}")


class Inner(FileModel):
    y: int = 0


class Model(FileModel):
    inner: list[Inner] = []  # noqa: RUF012 - pydantic copies it


def test_a_models_faults_are_told_by_line(tmp_path: Path) -> None:
    file = read(tmp_path, "inner:\n  - y: 1\n  - y: one\n    z: 1\n")
    with pytest.raises(FileError) as caught:
        file.read_as(Model)
    assert str(caught.value).splitlines() == [
        "file.yaml: line 3: inner[1].y: should be a valid integer, unable to parse string as an integer",
        "file.yaml: line 4: inner[1].z: is not a known key",
    ]
    assert [fault.line for fault in caught.value.faults] == [3, 4]


def test_a_fault_between_two_keys_is_told_where_one_of_them_stands(tmp_path: Path) -> None:
    file = read(tmp_path, TEXT)
    (found,) = file.located([FileFault("unwritten", "is below name", beside="name")])
    assert str(found) == "line 1: unwritten: is below name"
    assert str(KeyFaults(found)) == str(found)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#,?% \n\t01~é\x00", max_size=60))
def test_any_text_is_a_value_or_a_fault(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    try:
        lines = read(tmp_path_factory.getbasetemp(), text).lines
    except FileError:
        return
    assert all(line >= 1 for line in lines.values())
