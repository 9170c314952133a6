"""How a header's value stands in this gateway: its bytes, one character for each (Latin-1), whatever they mean. Pure.

So every value can be sent on as it came, and none can fail on its way to an engine. Control characters have no place in
one (RFC 9110, section 5.5): they are refused at the edges, where values come in.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""All but the tab. What follows ASCII is not looked at: there a byte alone has no meaning."""


def from_text(text: str) -> str:
    """Of a value that was read as UTF-8, with a surrogate for each byte that was none: as aiohttp reads them, and as
    other gateways tell them."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def from_bytes(raw: bytes) -> str:
    return raw.decode("latin-1")


def to_bytes(value: str) -> bytes:
    return value.encode("latin-1")


def has_control_character(value: str) -> bool:
    return not value.isprintable() and _CONTROL.search(value) is not None
