"""Finds samples on a Prometheus page in its text form, by name and with their labels as a map. Pure.

Only lines of the wanted name are looked at, so that a long page costs little. It judges no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


class BadProbe(Exception):
    """An engine's page does not say what it should: why, in words."""


@dataclass(frozen=True, slots=True)
class Sample:
    labels: dict[bytes, bytes]
    value: float


_LABEL = re.compile(rb'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?')


def first_present(page: bytes, names: tuple[bytes, ...]) -> list[Sample]:
    """The samples of the first of these names that has any."""
    for name in names:
        found = list(samples(page, name))
        if found:
            return found
    return []


def samples(page: bytes, name: bytes) -> Iterator[Sample]:
    """Longer names that begin alike are passed over. Raises BadProbe where a sample cannot be read."""
    at = 0 if page.startswith(name) else _next_line(page, name, 0)
    while at >= 0:
        start = at + len(name)
        end = page.find(b"\n", start)
        rest = page[start:] if end < 0 else page[start:end]
        if rest[:1] in (b"{", b" ", b"\t"):
            yield _sample(rest)
        at = _next_line(page, name, start)


def _next_line(page: bytes, name: bytes, start: int) -> int:
    found = page.find(b"\n" + name, start)
    return found if found < 0 else found + 1


def _sample(rest: bytes) -> Sample:
    labels, rest = _split_labels(rest)
    words = rest.split()
    try:
        return Sample(labels, float(words[0]))
    except (IndexError, ValueError) as error:
        raise BadProbe("a sample has no number") from error


def _split_labels(rest: bytes) -> tuple[dict[bytes, bytes], bytes]:
    labels: dict[bytes, bytes] = {}
    if not rest.startswith(b"{"):
        return labels, rest
    at = 1
    while (match := _LABEL.match(rest, at)) is not None:
        labels[match[1]] = match[2]
        at = match.end()
    if rest[at : at + 1] != b"}":
        raise BadProbe("a sample's labels are malformed")
    return labels, rest[at + 1 :]
