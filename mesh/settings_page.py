"""Page of a file's keys, in Markdown: one table for each section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from mesh.settings_reference import Key

_LEGEND = (
    "A duration is a number with a unit, such as `100ms`, `2s`, `5m`, `1h` or `1d`; a size such as `256B`, `64KiB`,",
    "`16MiB` or `2GiB`. In a key's path, `[]` is each item of a list, and `NAME` is each name of a map. A key without",
    "a default may be left out, unless it is *required*; required keys of a section are required only where the",
    "section is written. A relative path starts at the folder of the file. The unit of a number is 1 where it has no",
    "dimension, as for a weight or a factor.",
)
_HEADER = "| key | type | unit | range | default | example | meaning |"
_RULE = "| --- | --- | --- | --- | --- | --- | --- |"
_TOP = "Top level"


def markdown(introduction: Sequence[str], keys: Iterable[Key], examples: Mapping[str, str]) -> str:
    """Return the page: the introduction, how values are written, and the keys.

    `examples` are values by path that are shown in place of the keys' own examples.
    """
    shown = [replace(key, example=examples.get(key.path, key.example)) for key in keys]
    return "\n".join([*introduction, "", *_LEGEND, *_tables(shown)]) + "\n"


def meaning_in_yaml(docstring: str) -> str:
    """Docstring in one line, with Python's constants as YAML writes them."""
    text = " ".join(docstring.split())
    for python, yaml in (("None:", "`null`:"), ("True:", "`true`:"), ("False:", "`false`:")):
        text = text.replace(python, yaml)
    return text


def _tables(keys: Sequence[Key]) -> Iterator[str]:
    """Keys that stand by themselves in one table, then a table for each section."""
    sections = list(dict.fromkeys(_section(key) for key in keys if _section(key) != key.path))
    for title, rows in (
        (_TOP, [key for key in keys if _section(key) not in sections]),
        *((f"`{section}`", [key for key in keys if _section(key) == section]) for section in sections),
    ):
        yield from ("", f"## {title}", "", _HEADER, _RULE)
        yield from map(_row, rows)


def _section(key: Key) -> str:
    return key.path.partition(".")[0].removesuffix("[]")


def _row(key: Key) -> str:
    example = f"`{key.example}`" if key.example else ""
    cells = (f"`{key.path}`", key.type, key.unit, key.range, key.default, example, meaning_in_yaml(key.meaning))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
