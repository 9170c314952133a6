"""Reads a frozen struct of settings as a section of a file: `wait_max_ns: int = ...` is the key `wait_max`, written
`60s`.

A section is declared once, as the struct whose field names it. Its keys, their types, the defaults and the written
form all follow from the fields' names and types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Generic, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from mesh.values import (
    Address,
    AddressText,
    Count,
    CountFromZero,
    Duration,
    Factor,
    FilePath,
    Id,
    Share,
    Size,
    format_duration,
    format_size,
)

AnySections = TypeVar("AnySections")
_Settings = TypeVar("_Settings", bound=Struct)


class FileModel(BaseModel):
    """Model of a file, or of a part of one: unknown keys are refused, and faults quote no value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        defer_build=True,  # parts of a file are built once, with the file
    )


class SectionsFile(FileModel, Generic[AnySections]):
    """Model of a file with a key for each field of the structs A and B, as `SectionsFile[A | B]`."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    """Names of fields with counts that may be 0."""

    def __class_getitem__(cls, sections: Any) -> Any:
        if isinstance(sections, TypeVar):
            return cls
        kinds = get_args(sections) or (sections,)
        keys = {name: key for kind in kinds for name, key in _keys(kind, cls.may_be_zero)}
        return create_model(cls.__name__, __base__=cls, **keys)

    def take(self, settings: type[_Settings]) -> _Settings:
        """Settings of one of those structs, from the sections that are its fields."""
        return _settings_from(settings, self)


def _keys(settings: type[Any], may_be_zero: frozenset[str]) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(settings, include_extras=True)
    for each in fields(settings):
        yield file_key(each.name), (file_type(each.name, hints[each.name], may_be_zero), _file_default(each))


def file_key(field_name: str) -> str:
    return field_name.removesuffix("_ns").replace("_bytes", "")


def file_type(field_name: str, hint: Any, may_be_zero: frozenset[str]) -> Any:
    if NoneType in get_args(hint):
        (present,) = (each for each in get_args(hint) if each is not NoneType)
        return file_type(field_name, present, may_be_zero) | None
    if field_name.endswith("_ns"):
        return Duration
    if "_bytes" in field_name:
        return Size
    if field_name.endswith("_share"):
        return Share
    if hint is float:
        return Factor
    if hint is int:
        return CountFromZero if field_name in may_be_zero else Count
    if is_settings(hint):
        return Annotated[hint, Section(may_be_zero)]
    if get_origin(hint) is dict and is_settings(get_args(hint)[1]):
        named, each = get_args(hint)
        key = named if get_origin(named) is Annotated else Id
        return dict[key, Annotated[each, Section(may_be_zero)]]  # type: ignore[valid-type]
    return {Path: FilePath, Address: AddressText, tuple[Address, ...]: tuple[AddressText, ...]}.get(hint, hint)


def is_settings(hint: Any) -> TypeGuard[type[Struct]]:
    """True for a struct of settings."""
    return isinstance(hint, type) and issubclass(hint, Struct) and hint is not Address


def _file_default(each: FieldInfo) -> Any:
    if each.default_factory is not NODEFAULT:
        return Field(default_factory=each.default_factory)
    return ... if each.default is NODEFAULT else each.default


class Section:
    """Annotation that makes pydantic read and write a struct of settings as a section of the file."""

    def __init__(self, may_be_zero: frozenset[str] = frozenset()) -> None:
        self.may_be_zero = may_be_zero

    def __get_pydantic_core_schema__(self, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        model = create_model(source.__name__, __base__=FileModel, **dict(_keys(source, self.may_be_zero)))
        return core_schema.no_info_after_validator_function(
            partial(_settings_from, source),
            handler.generate_schema(model),
            serialization=core_schema.plain_serializer_function_ser_schema(settings_as_file),
        )


def _settings_from(settings: type[_Settings], section: FileModel) -> _Settings:
    return settings(**{name: getattr(section, file_key(name)) for name in settings.__struct_fields__})


def settings_as_file(settings: Any) -> dict[str, Any]:
    """Section that would be read as these settings; for a dict of settings, a dict of sections."""
    if isinstance(settings, dict):
        return {str(name): settings_as_file(each) for name, each in settings.items()}
    return {file_key(name): _file_value(name, getattr(settings, name)) for name in settings.__struct_fields__}


def _file_value(field_name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Path | Address):
        return str(value)
    if isinstance(value, tuple):
        return [_file_value(field_name, each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(name): _file_value(field_name, each) for name, each in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if isinstance(value, Struct):
        return settings_as_file(value)
    if field_name.endswith("_ns"):
        return format_duration(value)
    return format_size(value) if "_bytes" in field_name else value


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Paths of the keys in which two documents differ; a list counts as one value."""
    old, new = _leaves(before), _leaves(after)
    return [path for path in {**old, **new} if old.get(path) != new.get(path)]


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        leaf: found
        for key, each in value.items()
        for leaf, found in _leaves(each, f"{path}.{key}" if path else key).items()
    }
