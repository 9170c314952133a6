"""Base of the sections that features add to the region file, at its top or in the description of a pool. It is imported
wherever the file is read, so a section imports no edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct, json

from gateway.core.vocabulary import PoolSpec
from mesh.faults import FileFault
from mesh.settings import file_key
from mesh.values import SECOND_NS, format_duration

DURATION_MAX_NS = 365 * 24 * 3600 * SECOND_NS
"""Longest duration in a pool's description."""
_NO_SHORTER: Mapping[str, int] = {}
_Settings = TypeVar("_Settings", bound=Struct)


class WrittenFile(Protocol):
    """Parts of a region file that a section may be checked against."""

    @property
    def insecure(self) -> bool: ...

    @property
    def keeps_state(self) -> bool: ...

    def served_whole(self) -> set[tuple[str, str]]: ...


class FeatureSection(Struct, frozen=True):
    """Section of one feature. Every hook does nothing unless the section overrides it."""

    def faults(self, file: WrittenFile) -> Iterator[FileFault]:  # noqa: ARG002
        """Faults between keys that are valid by themselves."""
        yield from ()

    def secret_files(self) -> Iterator[Path]:
        """Files that hold keys or tokens."""
        yield from ()

    def read_files(self) -> Iterator[Path]:
        """Files that are read for a pool. A gateway that adopts the pool reads only those that its own operator
        lists."""
        yield from ()


def text_of(settings: Struct) -> str:
    """Settings as they stand in a pool's spec."""
    return json.encode(settings, enc_hook=str).decode()


def settings_in(spec: PoolSpec, key: str, settings: type[_Settings]) -> _Settings | None:
    """Settings under a key of a pool's description; None where it says nothing there."""
    text = dict(spec.features).get(key)
    return None if text is None else json.decode(text, type=settings, dec_hook=_read_path)


def duration_faults(settings: Struct, key: str, shorter: Mapping[str, int] = _NO_SHORTER) -> Iterator[FileFault]:
    """Yield a fault for each duration of the settings under a key that is not between 1 s and `DURATION_MAX_NS`: the
    description of a pool may come from another gateway. `shorter` gives other least durations in nanoseconds, by
    field."""
    for name in settings.__struct_fields__:
        if name.endswith("_ns"):
            yield from duration_fault(f"{key}.{file_key(name)}", getattr(settings, name), shorter.get(name, SECOND_NS))


def duration_fault(path: str, duration_ns: int, least_ns: int = SECOND_NS) -> Iterator[FileFault]:
    """Yield a fault if a duration in a pool's description is out of bounds."""
    if not least_ns <= duration_ns <= DURATION_MAX_NS:
        yield FileFault(path, f"should lie between {format_duration(least_ns)} and {format_duration(DURATION_MAX_NS)}")


def _read_path(kind: type[Any], written: Any) -> Any:
    return kind(written)
