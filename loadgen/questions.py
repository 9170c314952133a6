"""Parses question files: JSON lines with `question` or `turns`, or plain text with one question per line.

Pure: lines come in; unreadable lines are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from loadgen.traces.rows import RowFault, Unreadable


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions of a file, each with one or more turns, and its unreadable lines."""

    asked: tuple[tuple[str, ...], ...]
    unreadable: Unreadable


class _Line(msgspec.Struct):
    question: str = ""
    turns: list[str] = []


def parse_questions(lines: Iterable[str]) -> Questions:
    """Parse the lines. GSM8K has `question`, MT-Bench has `turns`."""
    unreadable = Unreadable()
    decoder = msgspec.json.Decoder(_Line)
    asked = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            asked.append(_turns(decoder.decode(text)) if text.startswith("{") else (text,))
        except (RowFault, msgspec.MsgspecError) as fault:
            unreadable.add(f"line {number}", fault)
    return Questions(tuple(asked), unreadable)


def _turns(line: _Line) -> tuple[str, ...]:
    turns = tuple(line.turns) or (line.question,)
    if not all(turn.strip() for turn in turns):
        raise RowFault("should hold a question or turns, and none of them empty")
    return turns
