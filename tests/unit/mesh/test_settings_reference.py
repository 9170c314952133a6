from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Generic

import pytest
from msgspec import Struct, field
from pydantic import Field, Strict

from mesh.settings import AnySections, FileModel, Section, SectionsFile
from mesh.settings_reference import Key, keys_of
from mesh.values import Address, FilePath, Id


class Colour(StrEnum):
    """Colour of the whole."""

    RED = "red"
    """Warm colour."""
    BLUE = "blue"


class InnerConfig(Struct, frozen=True):
    """Settings of an inner section.

    More about them.
    """

    wait_max_ns: int = 2_000_000_000
    body_max_bytes: int | None = 65_536
    """Largest
    body."""
    listen: tuple[Address, ...] = (Address("127.0.0.1", 80),)


class LeastConfig(Struct, frozen=True):
    """Counts that may be 0."""

    replicas_min: int = 1


class Whole(Struct, frozen=True):
    inner: InnerConfig = field(default_factory=lambda: InnerConfig(wait_max_ns=5_000_000))
    named: dict[str, InnerConfig] = field(default_factory=dict)
    seed: int | None = None
    pause_ns: int = 1_000_000
    """Pause between two steps."""
    colour: Colour = Colour.RED
    free_share: float = 0.5
    workers: int = 4
    """Workers at once."""
    file: Path | None = None


class Item(FileModel):
    id: Id
    port: Annotated[int, Strict(), Field(ge=1, le=65535)] = 80
    rank: int = Field(0, ge=0, le=7)
    """Rank."""
    shade: Colour
    """Shade."""
    inner: Annotated[InnerConfig, Section()] | None = None
    least: Annotated[LeastConfig, Section(frozenset({"replicas_min"}))] | None = None


class Sections(SectionsFile[AnySections], Generic[AnySections]):
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"seed"})


class WholeFile(Sections[Whole]):
    name: Id
    """Name of the whole."""
    items: tuple[Item, ...] = ()
    key: FilePath | None = None


def test_every_key_has_its_type_unit_range_default_example_and_meaning() -> None:
    wait = ("duration", "time", "> 0")
    size = ("size", "bytes", "> 0", "`64KiB`", "64KiB", "Largest\nbody.")
    listen = ("list of address", "", "", "`[127.0.0.1:80]`", "[127.0.0.1:80]", "")
    assert list(keys_of(WholeFile, Whole)) == [
        Key("inner", "section", "", "", "", "", "Settings of an inner section."),
        Key("inner.wait_max", *wait, "`5ms`", "5ms", ""),
        Key("inner.body_max", *size),
        Key("inner.listen", *listen),
        Key("named", "map of name to section", "", "", "`{}`", "", "Settings of an inner section."),
        Key("named.NAME.wait_max", *wait, "`2s`", "2s", ""),
        Key("named.NAME.body_max", *size),
        Key("named.NAME.listen", *listen),
        Key("seed", "integer", "1", "≥ 0", "", "10", ""),
        Key("pause", *wait, "`1ms`", "1ms", "Pause between two steps."),
        Key("colour", "`red` or `blue`", "", "", "`red`", "red", "Colour of the whole. `red`: Warm colour."),
        Key("free_share", "number", "fraction", "0 to 1", "`0.5`", "0.5", ""),
        Key("workers", "integer", "1", "≥ 1", "`4`", "4", "Workers at once."),
        Key("file", "path", "", "", "", "folder/file", ""),
        Key("name", "name", "", "", "required", "chat", "Name of the whole."),
        Key("items", "list of section", "", "", "`[]`", "", ""),
        Key("items[].id", "name", "", "", "required", "name-1", ""),
        Key("items[].port", "integer", "port", "1 to 65535", "`80`", "80", ""),
        Key("items[].rank", "integer", "1", "0 to 7", "`0`", "0", "Rank."),
        Key("items[].shade", "`red` or `blue`", "", "", "required", "red", "Shade. `red`: Warm colour."),
        Key("items[].inner", "section", "", "", "", "", "Settings of an inner section."),
        Key("items[].inner.wait_max", *wait, "`2s`", "2s", ""),
        Key("items[].inner.body_max", *size),
        Key("items[].inner.listen", *listen),
        Key("items[].least", "section", "", "", "", "", "Counts that may be 0."),
        Key("items[].least.replicas_min", "integer", "replicas", "≥ 0", "`1`", "1", ""),
        Key("key", "path", "", "", "", "certs/gateway.key", ""),
    ]


class StrangeFile(SectionsFile[Whole]):
    strange: complex = 1j


def test_a_type_without_a_name_is_an_error() -> None:
    with pytest.raises(TypeError, match="complex'> has no name"):
        list(keys_of(StrangeFile))
