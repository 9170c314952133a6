"""Reads YAML files without YAML's traps, and reports faults in their content by line and key.

`NO` is Norway and not false, `08:30` is not a number, and a key written twice is a fault. No file is repaired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from msgspec import Struct
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mesh.faults import FileError, FileFault, KeyFaults
from mesh.key_names import meant_by
from mesh.whole_files import UnfitFile, read_whole

DEPTH_MAX = 32
YAML_BYTES_MAX = 8 << 20
"""Most bytes of a file without a bound of its own; ten thousand keys of clients take a third."""
_TAGGED = "text that begins with ! is put in quotes"
_REPEATED_MAX = 10_000
"""Most values of a file in excess of its characters, where aliases repeat some."""

_Model = TypeVar("_Model", bound=BaseModel)
Words = Callable[[ErrorDetails], str | None]
"""Callback for a file's own message on a fault; None leaves the fault to the messages that all files share."""


class YamlFile(Struct, frozen=True):
    """Content of a file, and the line of each key."""

    path: Path
    content: object
    lines: Mapping[str, int]

    def mapping(self) -> dict[str, Any]:
        """Content as a mapping. Raises FileError where the file holds anything else."""
        if not isinstance(self.content, dict):
            raise FileError(self.path, [FileFault("", "should be a mapping of keys to values")])
        return self.content

    def read_as(self, model: type[_Model], *, context: object = None, words: Words | None = None) -> _Model:
        """Content as a model. Raises FileError."""
        try:
            return model.model_validate(self.content, context=context)
        except ValidationError as error:
            raise FileError(self.path, self.located(faults_in(error, words, model))) from error

    def located(self, faults: Iterable[FileFault]) -> list[FileFault]:
        """Faults with their lines: the key's own, that of the nearest key around it, or that of `beside`."""
        return [replace(fault, line=self.line_of(fault.key) or self.line_of(fault.beside)) for fault in faults]

    def line_of(self, key: str) -> int | None:
        while key and key not in self.lines:
            key = _LAST_PART.sub("", key)
        return self.lines.get(key)


_LAST_PART = re.compile(r"(?:\[[0-9]+\]|\.?[^.\[]*\[?)$")


def read_yaml(
    path: Path, *, bytes_max: int = YAML_BYTES_MAX, depth_max: int = DEPTH_MAX, is_plain: bool = False
) -> YamlFile:
    """Read a file. Raises FileError, also for what is no regular file, such as a pipe. A plain file has neither anchors
    nor tags."""
    text = _read_text(path, bytes_max)
    try:
        reader = _Reader(depth_max, len(text) + _REPEATED_MAX)
        node = _compose(text, depth_max, is_plain=is_plain)
        return YamlFile(path, None if node is None else reader.value(node, "", 0), reader.lines)
    except _FaultFound as found:
        raise FileError(path, [found.fault]) from None
    except yaml.MarkedYAMLError as error:
        raise FileError(path, [_yaml_fault(error)]) from error
    except yaml.YAMLError as error:
        raise FileError(path, [FileFault("", f"is not YAML: {error}")]) from error


def faults_in(
    error: ValidationError, words: Words | None = None, model: type[BaseModel] | None = None
) -> Iterator[FileFault]:
    """Yield each fault with a plain message and the path of its key. With the model of the whole file, an unknown key's
    message suggests the key that is probably meant."""
    for each in error.errors(include_url=False):
        key = _key_path(each["loc"])
        if each["type"] == "extra_forbidden" and not _NAME.fullmatch(str(each["loc"][-1])):
            yield FileFault(_key_path(each["loc"][:-1]), "holds a key that is not known, and no name", beside=key)
            continue
        cause = each["ctx"]["error"] if each["type"] == "value_error" else None
        if isinstance(cause, KeyFaults):
            yield from (replace(fault, key=_joined(key, fault.key)) for fault in cause.faults)
        else:
            own = words(each) if words is not None else None
            yield FileFault(key, own if own is not None else f"{_fault_message(each)}{_suggestion(each, model)}")


_NAME = re.compile(r"[\w./ -]{1,64}")
"""Form of an unknown key that may be quoted; a key of another form may be a line of some other file."""


def _read_text(path: Path, bytes_max: int) -> str:
    try:
        return read_whole(path, bytes_max).decode("utf-8")
    except UnfitFile as error:
        raise FileError(path, [FileFault("", error.strerror or "cannot be read")]) from error
    except OSError as error:
        raise FileError(path, [FileFault("", f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise FileError(path, [FileFault("", f"is not UTF-8 text (byte {error.start})")]) from error


# Text to nodes


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute, emptied

    def __init__(self, text: str, depth_max: int, *, is_plain: bool) -> None:
        super().__init__(text)
        self._depth_left = depth_max
        self._is_plain = is_plain

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = self._problem(event)
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._depth_left -= 1
        node = super().compose_node(parent, index)
        self._depth_left += 1
        return node

    def _problem(self, event: yaml.AliasEvent | yaml.ScalarEvent | yaml.CollectionStartEvent) -> str:
        if self._is_plain:
            if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
                return "anchors and aliases (& and *) are not allowed: each rule is written out where it holds"
            if event.tag is not None:
                return f"tags are not allowed: {_TAGGED}"
        return "" if self._depth_left > 0 else "nested too deeply"


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]{0,18})", list("-0123456789")),
    ("float", r"-?[0-9]+\.[0-9]+", list("-0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _compose(text: str, depth_max: int, *, is_plain: bool) -> yaml.Node | None:
    loader = _Loader(text, depth_max, is_plain=is_plain)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _yaml_fault(error: yaml.MarkedYAMLError) -> FileFault:
    line = error.problem_mark.line + 1 if error.problem_mark is not None else None
    told = ": ".join(part for part in (error.context, error.problem) if part)
    return FileFault("", _QUOTED.sub(r"\1", told), line)


_QUOTED = re.compile(r"(alias|anchor|handle) (['\"]).*?\2")
"""Names that PyYAML quotes from a file: text that begins with *, & or ! is taken for such a name, and may be a
secret."""


# Nodes to values


class _FaultFound(Exception):
    def __init__(self, key: str, message: str, node: yaml.Node) -> None:
        super().__init__(key, message)
        self.fault = FileFault(key, message, _line_number(node))


class _Reader:
    """Converter of nodes into values, which remembers the line of each key."""

    def __init__(self, depth_max: int, values_max: int) -> None:
        self.lines: dict[str, int] = {}
        self._depth_max = depth_max
        self._values_left = values_max

    def value(self, node: yaml.Node, key: str, depth: int) -> object:
        self._values_left -= 1
        if depth > self._depth_max or self._values_left < 0:
            raise _FaultFound(key, "nested too deeply, or repeated too often by aliases", node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._at(item, f"{key}[{index}]", item, depth) for index, item in enumerate(node.value)]
        return _scalar(node, key)

    def _mapping(self, node: yaml.MappingNode, key: str, depth: int) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for name_node, value_node in node.value:
            name = _key_name(name_node, key)
            if name in mapping:
                raise _FaultFound(_joined(key, name), "is written twice", name_node)
            mapping[name] = self._at(value_node, _joined(key, name), name_node, depth)
        return mapping

    def _at(self, node: yaml.Node, key: str, place: yaml.Node, depth: int) -> object:
        self.lines[key] = _line_number(place)
        return self.value(node, key, depth + 1)


def _key_name(node: yaml.Node, key: str) -> str:
    name = _scalar(node, key) if isinstance(node, yaml.ScalarNode) else None
    if not isinstance(name, str):
        raise _FaultFound(key, "a key here is not text; put it in quotes", node)
    return name


def _scalar(node: yaml.Node, key: str) -> str | int | float | bool | None:
    text = str(node.value)
    try:
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "null":
                return None
            case "bool":
                return {"true": True, "false": False}[text]
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "str" | "!":
                return text
            case _:
                raise _FaultFound(key, f"has a tag that is not known here: {_TAGGED}", node)
    except (ValueError, KeyError):
        raise _FaultFound(key, "is not what its tag says", node) from None


def _line_number(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


# Paths of keys, and faults in plain words


def _joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key and name and not name.startswith("[") else key + name


def _key_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if part != "[key]":
            path = f"{path}[{part}]" if isinstance(part, int) else _joined(path, part)
    return path


def _suggestion(error: ErrorDetails, model: type[BaseModel] | None) -> str:
    if error["type"] != "extra_forbidden" or model is None:
        return ""
    meant = meant_by(model, error["loc"])
    return f"; is `{meant}` meant?" if meant is not None else ""


def _fault_message(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "is not a known key"
        case "too_short":
            return "should not be empty"
        case "value_error":
            return str(error["ctx"]["error"])
        case _:
            return error["msg"].replace("Input should be", "should be", 1)
