"""Hints of agents in headers. A malformed one is refused like any other malformed header; no other hint refuses a
request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.core.vocabulary import HINTED_TOKENS_MAX, HintKind
from gateway.door.errors import INVALID_HEADER, ClientFault
from gateway.request.nvext import PRIORITY_MAX

OUTPUT_TOKENS_HEADER: Final = "x-nightside-output-tokens"
PRIORITY_HEADER: Final = "x-nightside-priority"
SESSION_END_HEADER: Final = "x-nightside-session-end"
PREFIX_AGAIN_HEADER: Final = "x-nightside-prefix-again"
HINT_HEADERS: Final = frozenset({OUTPUT_TOKENS_HEADER, PRIORITY_HEADER, SESSION_END_HEADER, PREFIX_AGAIN_HEADER})
NO_HINTS_GIVEN: Final[Mapping[str, int]] = MappingProxyType({})
_TRUTHS: Final = {"true": True, "false": False}
_DIGITS_MAX: Final = 10
_SHOWN_MAX: Final = 40


def hints_in(headers: Mapping[str, str]) -> dict[str, int]:
    """Hints that a request's headers give, by field of `Hints`, also those that say 0 or false. Raises ClientFault."""
    given: dict[str, int] = {}
    if OUTPUT_TOKENS_HEADER in headers:
        given[HintKind.OUTPUT_TOKENS] = _number(headers, OUTPUT_TOKENS_HEADER, 1, HINTED_TOKENS_MAX)
    if PRIORITY_HEADER in headers:
        given[HintKind.PRIORITY] = _number(headers, PRIORITY_HEADER, 0, PRIORITY_MAX)
    if SESSION_END_HEADER in headers:
        given[HintKind.ENDS_SESSION] = _truth(headers, SESSION_END_HEADER)
    if PREFIX_AGAIN_HEADER in headers:
        given[HintKind.COMES_AGAIN] = _truth(headers, PREFIX_AGAIN_HEADER)
    return given


def _number(headers: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = headers[name].strip()
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    if not is_number or not least <= int(text) <= most:
        raise ClientFault(INVALID_HEADER, f"it is {least:,} to {most:,}, not {text[:_SHOWN_MAX]!r}", name)
    return int(text)


def _truth(headers: Mapping[str, str], name: str) -> bool:
    text = headers[name].strip().lower()
    if text not in _TRUTHS:
        raise ClientFault(INVALID_HEADER, f"it is true or false, not {text[:_SHOWN_MAX]!r}", name)
    return _TRUTHS[text]
