"""Example files of settings: the value that an example gives each key, and comments made of the keys' meanings.

Only the text is read: no value is checked here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

import yaml
from msgspec import Struct

_WIDTH = 120
_EMPTY = ("null", "{}", "[]", "")
_KEPT = "##"
"""Start of a comment line that is not made of a meaning."""


class ExampleEntry(Struct, frozen=True):
    """Key of an example file."""

    path: str
    """Path of the key in the reference: `[]` for an item of a list, `NAME` for a name of a map."""
    line: int
    """Number of its line, from 0."""
    in_flow: bool
    """Key stands inside braces, among others on its line."""
    value: str
    """Value in one line of YAML; empty for a section."""


def entries_in(text: str, known: Iterable[str]) -> Iterator[ExampleEntry]:
    """Keys of a YAML document in order, of those that the reference knows by path. Raises yaml.YAMLError."""
    paths = frozenset(known)
    sections = frozenset(path[: path.rindex(".")] for path in paths if "." in path)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        yield from _entries_below(text, "", root, paths, sections)


def _entries_below(
    text: str, above: str, node: yaml.MappingNode, paths: frozenset[str], sections: frozenset[str]
) -> Iterator[ExampleEntry]:
    for key, value in node.value:
        path = f"{above}{key.value}"
        if path not in paths and f"{above}NAME" in sections:
            path = f"{above}NAME"
        inner = f"{path}[]" if isinstance(value, yaml.SequenceNode) else path
        is_section = inner in sections or f"{path}.NAME" in sections
        if path in paths:
            shown = "" if is_section else _in_one_line(text, value)
            yield ExampleEntry(path, key.start_mark.line, bool(node.flow_style), shown)
        if not is_section:
            continue
        for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if isinstance(each, yaml.MappingNode):
                yield from _entries_below(text, f"{inner}.", each, paths, sections)


def _in_one_line(text: str, node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "{" + ", ".join(f"{key.value}: {_in_one_line(text, value)}" for key, value in node.value) + "}"
    if isinstance(node, yaml.SequenceNode):
        return "[" + ", ".join(_in_one_line(text, each) for each in node.value) + "]"
    return text[node.start_mark.index : node.end_mark.index]


def examples_in(text: str, known: Iterable[str]) -> dict[str, str]:
    """First value of each key that says more than `null` or an empty list."""
    examples: dict[str, str] = {}
    for each in entries_in(text, known):
        if each.value not in _EMPTY:
            examples.setdefault(each.path, each.value)
    return examples


def commented(text: str, meanings: Mapping[str, str]) -> str:
    """Return the example with each key's meaning as a comment, in place of earlier comments.

    A key of the same name and meaning has it once. Lines that begin with `##` stay. Raises yaml.YAMLError, and
    ValueError where the values would change.
    """
    comments = _comments(text, meanings)
    lines: list[str] = []
    ends, continued = _ends_of_content(text)
    for number, (line, end) in enumerate(zip(text.splitlines(), ends, strict=True)):
        content = line if line.startswith(_KEPT) else line[:end].rstrip()
        if content or not line.strip():
            lines += _with_comment(content, comments.get(number, ""), is_continued=number in continued)
    made = "\n".join(lines) + "\n"
    if _loaded(made) != yaml.safe_load(text):
        raise ValueError("its comments cannot be replaced without changing its values")
    return made


def _loaded(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _comments(text: str, meanings: Mapping[str, str]) -> dict[int, str]:
    """Comment of each line that has one, by its number."""
    comments: dict[int, str] = {}
    seen: set[tuple[str, str]] = set()
    for each in entries_in(text, meanings):
        told = each.path.rpartition(".")[2], meanings[each.path]
        if told not in seen and not each.in_flow and meanings[each.path]:
            comments[each.line] = meanings[each.path]
        seen.add(told)
    return comments


def _ends_of_content(text: str) -> tuple[list[int], set[int]]:
    """Column at which the content of each line ends, before any comment, and the lines on which a scalar of several
    lines begins."""
    ends = [0] * len(text.splitlines())
    lengths = [len(line) for line in text.splitlines()]
    continued: set[int] = set()
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        start, end = token.start_mark, token.end_mark
        if end.index > start.index:
            ends[start.line : end.line] = lengths[start.line : end.line]
            if start.line < end.line:  # a scalar of several lines
                continued.add(start.line)
            if end.line < len(ends):
                ends[end.line] = max(ends[end.line], end.column)
    return ends, continued


def _with_comment(content: str, comment: str, *, is_continued: bool) -> list[str]:
    """Lines of one entry: the comment stands behind it where it fits there and its value ends there, else above."""
    if not comment:
        return [content]
    if not is_continued and len(content) + 3 + len(comment) <= _WIDTH:
        return [f"{content} # {comment}"]
    prefix = " " * (len(content) - len(content.lstrip(" "))) + "# "
    wrapped = textwrap.wrap(
        comment, _WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_long_words=False, break_on_hyphens=False
    )
    return [*wrapped, content]
