from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct, field

from mesh.faults import FileError
from mesh.settings import SectionsFile
from mesh.values import Address, FileContext
from mesh.yaml_file import read_yaml


class Keys(Struct, frozen=True):
    certificate: Path
    spare: Path | None = None


class Serving(Struct, frozen=True):
    listen: Address | None = None
    keys: Keys | None = None
    wait_max_ns: int = 1_500_000_000
    body_max_bytes: int = 2**20
    spare_share: float = 0.5
    queue_max: int = 5
    others: tuple[Address, ...] = ()
    by_name: dict[str, Keys] = field(default_factory=dict)


class Sections(Struct, frozen=True):
    serving: Serving = field(default_factory=Serving)


class Others(Struct, frozen=True):
    retries: int = 1


class File(SectionsFile[Sections | Others]):
    name: str = "none"


def parsed(folder: Path, text: str) -> File:
    path = folder / "file.yaml"
    path.write_text(text)
    return read_yaml(path).read_as(File, context=FileContext(folder, {}))


def test_a_dataclass_is_a_section_that_is_written_back_as_it_was(tmp_path: Path) -> None:
    text = (
        "name: a\nretries: 3\nserving: {listen: '[::1]:7', keys: {certificate: c.pem}, wait_max: 2s, body_max: 3KiB,"
        " others: ['[::1]:8', '10.0.0.1:9'], by_name: {first: {certificate: d.pem}}}\n"
    )
    file = parsed(tmp_path, text)
    assert file.take(Others) == Others(3)
    assert file.take(Sections).serving == Serving(
        Address("::1", 7),
        Keys(tmp_path / "c.pem"),
        2_000_000_000,
        3 * 2**10,
        others=(Address("::1", 8), Address("10.0.0.1", 9)),
        by_name={"first": Keys(tmp_path / "d.pem")},
    )
    document = file.model_dump(mode="json", exclude_none=True)
    assert document["serving"]["wait_max"] == "2s"
    assert document["serving"]["others"] == ["[::1]:8", "10.0.0.1:9"]
    assert document["serving"]["by_name"] == {"first": {"certificate": str(tmp_path / "d.pem"), "spare": None}}
    assert document["serving"]["keys"] == {"certificate": str(tmp_path / "c.pem"), "spare": None}


def test_the_defaults_are_those_of_the_dataclass(tmp_path: Path) -> None:
    assert parsed(tmp_path, "{}").take(Sections) == Sections()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("serving: {wait_max: 5}", "serving.wait_max: 5 is not a duration such as 100ms or 2s"),
        ("serving: {wait_max_ns: 5}", "serving.wait_max_ns: is not a known key; is `wait_max` meant?"),
        ("serving: {spare_share: 2.0}", "serving.spare_share: should be less than or equal to 1"),
        (
            'serving: {keys: {certificate: "a\\0b"}}',
            "serving.keys.certificate: should be a path, and it has a NUL character",
        ),
        (
            'serving: {keys: {certificate: "\\uD800"}}',
            "serving.keys.certificate: should be a path, and it has a character that no path can have",
        ),
        ("serving: {queue_max: 0}", "serving.queue_max: should be greater than or equal to 1"),
        ("serving: {keys: {}}", "serving.keys.certificate: is missing"),
        ("serving: {by_name: {first: {certificate: c, key: c}}}", "serving.by_name.first.key: is not a known key"),
        ("retries: x", "retries: should be a valid integer"),
    ],
)
def test_what_a_section_cannot_hold_is_told_by_key(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(FileError) as caught:
        parsed(tmp_path, text)
    assert str(caught.value) == f"file.yaml: line 1: {expected}"
