"""Finds samples on a Prometheus page in its text form, by name and with their labels as a map. Pure.

A page is searched once, for the lines of all wanted names: most of it is about other metrics, and it is read ten times
a second. No value is judged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple


class BadProbe(Exception):
    """An engine's page does not contain what it should, for the reason given in words."""


class MetricSample(NamedTuple):
    labels: Mapping[bytes, bytes]
    value: float


Lines = dict[bytes, list[tuple[bytes, bytes]]]
"""Lines by metric name, each as its labels in braces (empty if the braces are not closed) and the rest of the line."""

_QUOTED = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_BRACES = rb'\{(?:[^"}\n]++|' + _QUOTED + rb")*+\}"
"""Possessive quantifiers throughout: a label as large as the page costs its length once, and no stack."""
_LABEL = re.compile(rb"\s*([a-zA-Z_][a-zA-Z0-9_]*)=(" + _QUOTED + rb")\s*,?")
_KNOWN_LABELS_MAX = 1024
_KNOWN_LENGTH_MAX = 512


def lines_about(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """Pattern for `find`. A longer name that begins with a wanted one does not match."""
    return re.compile(rb"\n(" + _any_of(names) + rb")(?=[{ \t])(" + _BRACES + rb")?(.*)")


def _any_of(words: Iterable[bytes]) -> bytes:
    """Pattern for any of the words, as a tree by letters: most lines of a page are rejected at the first or second
    letter."""
    by_first: dict[bytes, list[bytes]] = {}
    for word in words:
        by_first.setdefault(word[:1], []).append(word[1:])
    branches = (re.escape(first) + _any_of(rests) if first else b"" for first, rests in by_first.items())
    return b"(?:" + b"|".join(branches) + b")"


def find(page: bytes, wanted: re.Pattern[bytes]) -> Lines:
    """Lines of the wanted names, in the order of the page, which need not keep the lines of one name together."""
    lines: Lines = {}
    for name, labels, rest in wanted.findall(b"\n" + page):
        lines.setdefault(name, []).append((labels, rest))
    return lines


def first_present(lines: Lines, names: tuple[bytes, ...]) -> list[MetricSample]:
    """Samples of the first of these names that has any. Raises BadProbe if one of them cannot be read."""
    for name in names:
        if name in lines:
            return samples(lines, name)
    return []


def samples(lines: Lines, name: bytes) -> list[MetricSample]:
    """Samples of this name. Raises BadProbe if one of them cannot be read."""
    return [_sample(labels, rest) for labels, rest in lines.get(name, ())]


def _sample(labels: bytes, rest: bytes) -> MetricSample:
    if not labels and rest.startswith(b"{"):
        raise BadProbe("a sample's labels are malformed")
    known = _known_labels(labels) if len(labels) <= _KNOWN_LENGTH_MAX else _read_labels(labels)
    try:
        return MetricSample(known, float(rest.split(None, 1)[0]))
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
"""Cache of labels, which hardly change between probes or between engines."""
