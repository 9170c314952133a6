"""Reference of a file's keys: type, unit, range, default, example and meaning of each, read from the models that check
the file.

Meanings are the docstrings under the attributes, so they are read from the sources beside the running modules.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mesh.settings import Section, SectionsFile, file_key, file_type, is_settings
from mesh.settings_samples import SAMPLES
from mesh.settings_units import unit_of
from mesh.values import (
    Address,
    AddressText,
    Duration,
    FilePath,
    HostAddress,
    HostName,
    Id,
    Origin,
    Size,
    WebUrl,
    format_duration,
    format_size,
)

_NAMED: Sequence[tuple[Any, str, str]] = (
    (Duration, "duration", "30s"),
    (Size, "size", "16MiB"),
    (FilePath, "path", "folder/file"),
    (AddressText, "address", "10.0.0.5:8080"),
    (HostAddress, "host address", "192.0.2.10"),
    (HostName, "host name", "host.example.net"),
    (Origin, "origin", "https://chat.example.net"),
    (WebUrl, "URL", "https://host.example.net"),
    (Id, "name", "name-1"),
)
"""Types with names of their own, each with an example."""
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "path", Address: "address"}
_PLAIN_EXAMPLES = {bool: "true", int: "10", float: "0.5", str: "text", Path: "folder/file", Address: "10.0.0.5:8080"}
_REQUIRED = "required"
_NOT_AN_EXAMPLE = (_REQUIRED, "", "`{}`", "`[]`")
"""Defaults that show no value."""


class Key(Struct, frozen=True):
    """One key of a file."""

    path: str
    """Dotted path; `[]` stands for each item of a list, `NAME` for each name of a map."""
    type: str
    unit: str
    """Unit of a number; empty for other values."""
    range: str
    """Bounds of a number, such as `≥ 1`; empty without any."""
    default: str
    """Default as it is written in the file; `required` where there is none."""
    example: str
    """Value in one line of YAML; empty for a section."""
    meaning: str
    """Docstring of the attribute, or else of its section or of its values, with the values that have docstrings of
    their own; empty without any."""


def keys_of(file: type[SectionsFile[Any]], *documented: type[Any]) -> Iterator[Key]:
    """Every key of a file, sections before their keys.

    `documented` are the structs whose fields are the file's sections: their docstrings explain the sections. Raises
    TypeError for a type without a name in the reference.
    """
    yield from _keys_below("", file, NODEFAULT, _meanings(file, *documented), file.may_be_zero)


def _keys_below(
    above: str, model: type[Any], defaults: Any, meanings: Mapping[str, str], may_be_zero: frozenset[str]
) -> Iterator[Key]:
    """Keys of a model or of a struct of settings; `defaults` is an instance of it, or NODEFAULT."""
    for name, key, hint, own in _attributes(model, may_be_zero):
        value = own if defaults is NODEFAULT else getattr(defaults, name)
        sections = list(_sections(hint))
        default = _default(hint, value, is_section=bool(sections))
        yield Key(
            f"{above}{key}",
            _type(hint),
            unit_of(key, _type(hint).removeprefix("list of ")),
            _range(hint),
            default,
            "" if sections else _example_of(key, hint, default),
            " ".join(filter(None, (meanings.get(file_key(name)) or _about(hint, sections), _values(hint)))),
        )
        for section, below in sections:
            inner = value if isinstance(value, section) else NODEFAULT
            zeros = _may_be_zero(hint, may_be_zero)
            yield from _keys_below(f"{above}{key}{below}.", section, inner, _meanings(section), zeros)


def _attributes(model: type[Any], may_be_zero: frozenset[str]) -> Iterator[tuple[str, str, Any, Any]]:
    """Name, key, type and default of each attribute; NODEFAULT for no default."""
    hints = get_type_hints(model, include_extras=True)
    if issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            is_bounded = bool(info.metadata) and get_origin(hints[name]) is not Annotated
            hint = Annotated[hints[name], info] if is_bounded else hints[name]
            yield name, info.alias or name, hint, _model_default(info)
    else:
        for each in fields(model):
            factory = each.default_factory
            own = each.default if factory is NODEFAULT else factory()
            yield each.name, file_key(each.name), file_type(each.name, hints[each.name], may_be_zero), own


def _model_default(info: FieldInfo) -> Any:
    value = info.get_default(call_default_factory=True, validated_data={})
    return NODEFAULT if value is PydanticUndefined else value


def _sections(hint: Any, below: str = "") -> Iterator[tuple[type[Any], str]]:
    """Models and structs of settings inside a type, each with the path that leads to it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _sections(inner[0], below)
    elif origin in (Union, UnionType):
        for each in inner:
            yield from _sections(each, below)
    elif origin in (tuple, list, frozenset):
        yield from _sections(inner[0], f"{below}[]")
    elif origin is not None and len(inner) == 2:
        yield from _sections(inner[1], f"{below}.NAME")
    elif isinstance(hint, type) and _is_section(hint):
        yield hint, below


def _may_be_zero(hint: Any, outer: frozenset[str]) -> frozenset[str]:
    """Names of counts that may be 0 in the section of this type: its own, or else those of the file."""
    for each in get_args(hint):
        if isinstance(each, Section):
            return each.may_be_zero
        if (own := _may_be_zero(each, outer)) != outer:
            return own
    return outer


def _is_section(kind: type[Any]) -> bool:
    return issubclass(kind, BaseModel) or is_settings(kind)


def _type(hint: Any) -> str:
    for named, word, _ in _NAMED:
        if hint == named:
            return word
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_type(each) for each in inner if each is not NoneType)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin in (tuple, list, frozenset):
        return f"list of {_type(inner[0])}"
    if origin is not None and len(inner) == 2:
        return f"map of {_type(inner[0])} to {_type(inner[1])}"
    return _plain_type(hint)


def _plain_type(hint: Any) -> str:
    if hasattr(hint, "__supertype__"):
        return _type(hint.__supertype__)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{each.value}`" for each in hint)
    if isinstance(hint, type) and _is_section(hint):
        return "section"
    raise TypeError(f"{hint} has no name in the reference of keys")


def _range(hint: Any) -> str:
    """Bounds of a number, as `≥ 1` or `1 to 65535`; empty without any."""
    if get_origin(hint) is not Annotated:
        return next((found for each in get_args(hint) if (found := _range(each))), "")
    bounds = [
        bound for each in get_args(hint)[1:] for bound in (each.metadata if isinstance(each, FieldInfo) else [each])
    ]
    least = next((each.ge for each in bounds if getattr(each, "ge", None) is not None), None)
    most = next((each.le for each in bounds if getattr(each, "le", None) is not None), None)
    above = next((each.gt for each in bounds if getattr(each, "gt", None) is not None), None)
    if least is not None and most is not None:
        return f"{least} to {most}"
    return f"≥ {least}" if least is not None else f"> {above}" if above is not None else _range(get_args(hint)[0])


def _example_of(key: str, hint: Any, default: str) -> str:
    """Value of a key in one line of YAML: its default, or else a value that suits its name or type."""
    return default.strip("`") if default not in _NOT_AN_EXAMPLE else SAMPLES.get(key) or _example(hint)


def _example(hint: Any) -> str:
    """Value of a type, in one line of YAML."""
    if (known := next((text for named, _, text in _NAMED if hint == named), None)) is not None:
        return known
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _example(inner[0])
    if origin in (Union, UnionType):
        return _example(next(each for each in inner if each is not NoneType))
    if origin is Literal:
        return str(inner[0])
    if origin in (tuple, list, frozenset):
        return f"[{_example(inner[0])}]"
    if origin is not None and len(inner) == 2:
        return f"{{{_example(inner[0])}: {_example(inner[1])}}}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str(next(iter(hint)).value)
    return _PLAIN_EXAMPLES[getattr(hint, "__supertype__", hint)]


def _default(hint: Any, value: Any, *, is_section: bool) -> str:
    if value is NODEFAULT:
        return _REQUIRED
    if value is None or (is_section and _is_section(type(value))):
        return ""
    return f"`{_written(hint, value)}`"


def _written(hint: Any, value: Any) -> str:
    if hint in (Duration, Duration | None):
        return format_duration(value)
    if hint in (Size, Size | None):
        return format_size(value)
    if isinstance(value, tuple | list | frozenset):
        return f"[{', '.join(_written(get_args(hint)[:1], each) for each in value)}]"
    if isinstance(value, Enum):
        return str(value.value)
    return json.dumps(value) if isinstance(value, bool | int | float | dict) else str(value)


def _meanings(*classes: type[Any]) -> dict[str, str]:
    """Docstring of the attribute behind each key that has one, those of derived classes first."""
    found: dict[str, str] = {}
    for kind in (base for each in classes for base in each.__mro__):
        for name, text in _docstrings(kind).items():
            found.setdefault(file_key(name), text)
    return found


def _about(hint: Any, sections: Sequence[tuple[type[Any], str]]) -> str:
    """Docstring of the only section, or of the values, that a type has; empty for any other type."""
    if len(sections) == 1:
        return _class_docstring(sections[0][0])
    kind = _enum(hint)
    return "" if kind is None else _class_docstring(kind)


def _values(hint: Any) -> str:
    """Docstrings of an enum's values, each behind its value; empty for any other type."""
    kind = _enum(hint)
    explained = {} if kind is None else _docstrings(kind)
    return " ".join(f"`{each.value}`: {explained[each.name]}" for each in kind or () if each.name in explained)


def _enum(hint: Any) -> type[Enum] | None:
    """Only enum that a type has; None for any other type."""
    kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, Enum)]
    return kinds[0] if len(kinds) == 1 else None


def _class_docstring(kind: type[Any]) -> str:
    """First paragraph of a class's docstring."""
    source = next((each for each in _source(kind.__module__).body if _is_class(each, kind.__name__)), None)
    return (ast.get_docstring(source) or "").partition("\n\n")[0] if source else ""


@cache
def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Docstrings under the attributes of one class, without those of its bases."""
    body = next((each.body for each in _source(kind.__module__).body if _is_class(each, kind.__name__)), [])
    return {
        name: inspect.cleandoc(below.value.value)
        for above, below in pairwise(body)
        if (name := _assigned(above))
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _assigned(statement: ast.stmt) -> str:
    """Name of the attribute, or of the member of an enum, that a statement defines; empty for any other statement."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            return ""


@cache
def _source(module: str) -> ast.Module:
    """Source beside a module, which may be compiled; empty for a module without one."""
    file = Path(getattr(sys.modules[module], "__file__", None) or "")
    source = file.with_name(f"{file.name.partition('.')[0]}.py") if file.name else file
    return ast.parse(source.read_text(encoding="utf-8") if source.is_file() else "")


def _is_class(statement: ast.stmt, name: str) -> TypeGuard[ast.ClassDef]:
    return isinstance(statement, ast.ClassDef) and statement.name == name
