"""Hints of agents in headers. A malformed one is refused like any other malformed header; no other hint refuses a
request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.core.vocabulary import HINTED_TOKENS_MAX, Hints
from gateway.door.errors import INVALID_HEADER, ClientFault
from gateway.request.nvext import PRIORITY_MAX

OUTPUT_TOKENS_HEADER: Final = "x-nightside-output-tokens"
PRIORITY_HEADER: Final = "x-nightside-priority"
SESSION_END_HEADER: Final = "x-nightside-session-end"
PREFIX_AGAIN_HEADER: Final = "x-nightside-prefix-again"
HINT_HEADERS: Final = frozenset({OUTPUT_TOKENS_HEADER, PRIORITY_HEADER, SESSION_END_HEADER, PREFIX_AGAIN_HEADER})
_TRUTHS: Final = {"true": True, "false": False}
_DIGITS_MAX: Final = 10
_SHOWN_MAX: Final = 40


def hints_in(headers: Mapping[str, str]) -> Hints:
    """Hints in a request's headers. Raises ClientFault."""
    return Hints(
        output_tokens=_number(headers, OUTPUT_TOKENS_HEADER, 1, HINTED_TOKENS_MAX),
        priority=_number(headers, PRIORITY_HEADER, 0, PRIORITY_MAX),
        ends_session=_truth(headers, SESSION_END_HEADER),
        comes_again=_truth(headers, PREFIX_AGAIN_HEADER),
    )


def _number(headers: Mapping[str, str], name: str, least: int, most: int) -> int:
    if name not in headers:
        return 0
    text = headers[name].strip()
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    if not is_number or not least <= int(text) <= most:
        raise ClientFault(INVALID_HEADER, f"it is {least:,} to {most:,}, not {text[:_SHOWN_MAX]!r}", name)
    return int(text)


def _truth(headers: Mapping[str, str], name: str) -> bool:
    if name not in headers:
        return False
    text = headers[name].strip().lower()
    if text not in _TRUTHS:
        raise ClientFault(INVALID_HEADER, f"it is true or false, not {text[:_SHOWN_MAX]!r}", name)
    return _TRUTHS[text]
