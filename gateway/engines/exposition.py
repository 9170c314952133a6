"""Finds samples on a Prometheus page in its text form, by name and with their labels as a map. Pure.

A page is gone through once, for the lines of all the names that are wanted: most of it is about other things, and it
is read ten times a second. It judges no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple


class BadProbe(Exception):
    """An engine's page does not say what it should: why, in words."""


class Sample(NamedTuple):
    labels: Mapping[bytes, bytes]
    value: float


Lines = dict[bytes, list[tuple[bytes, bytes]]]
"""What stands behind each name found, line by line: its labels in their braces, if they are closed, and the rest."""

_QUOTED = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_BRACES = rb'\{(?:[^"}\n]++|' + _QUOTED + rb")*+\}"
"""Possessive all through: a label as large as the page costs its length once, and no stack."""
_LABEL = re.compile(rb"\s*([a-zA-Z_][a-zA-Z0-9_]*)=(" + _QUOTED + rb")\s*,?")
_KNOWN_LABELS_MAX = 1024
_KNOWN_LENGTH_MAX = 512


def lines_about(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """What `find` looks for: longer names that begin alike are passed over."""
    return re.compile(rb"\n(" + _any_of(names) + rb")(?=[{ \t])(" + _BRACES + rb")?(.*)")


def _any_of(words: Iterable[bytes]) -> bytes:
    """As a pattern, a tree by letters: most lines of a page are done with at the first or second."""
    by_first: dict[bytes, list[bytes]] = {}
    for word in words:
        by_first.setdefault(word[:1], []).append(word[1:])
    branches = (re.escape(first) + _any_of(rests) if first else b"" for first, rests in by_first.items())
    return b"(?:" + b"|".join(branches) + b")"


def find(page: bytes, wanted: re.Pattern[bytes]) -> Lines:
    """In the order of the page, which need not keep the lines of one name together."""
    lines: Lines = {}
    for name, labels, rest in wanted.findall(b"\n" + page):
        lines.setdefault(name, []).append((labels, rest))
    return lines


def first_present(lines: Lines, names: tuple[bytes, ...]) -> list[Sample]:
    """The samples of the first of these names that has any. Raises BadProbe where one of them cannot be read."""
    for name in names:
        if name in lines:
            return samples(lines, name)
    return []


def samples(lines: Lines, name: bytes) -> list[Sample]:
    """Raises BadProbe where one of them cannot be read."""
    return [_sample(labels, rest) for labels, rest in lines.get(name, ())]


def _sample(labels: bytes, rest: bytes) -> Sample:
    if not labels and rest.startswith(b"{"):
        raise BadProbe("a sample's labels are malformed")
    known = _known_labels(labels) if len(labels) <= _KNOWN_LENGTH_MAX else _read_labels(labels)
    try:
        return Sample(known, float(rest.split(None, 1)[0]))
    except (IndexError, ValueError) as error:
        raise BadProbe("a sample has no number") from error


def _read_labels(braces: bytes) -> dict[bytes, bytes]:
    labels: dict[bytes, bytes] = {}
    at = 1
    while (match := _LABEL.match(braces, at)) is not None:
        labels[match[1]] = match[2][1:-1]
        at = match.end()
    if braces[at:] not in (b"", b"}"):
        raise BadProbe("a sample's labels are malformed")
    return labels


_known_labels = lru_cache(_KNOWN_LABELS_MAX)(_read_labels)
"""They hardly change from one look to the next, nor from one engine to another."""
