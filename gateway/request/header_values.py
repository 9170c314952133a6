"""Header values as this gateway holds them: their bytes, one character for each (Latin-1), whatever they mean. Pure.

Every value can thus be sent on unchanged, and none can fail on its way to an engine. Control characters are invalid in
a value (RFC 9110, section 5.5) and refused at the edges.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import methodcaller

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Control characters except tab. Bytes above ASCII are not checked: alone they have no meaning."""


def from_text(text: str) -> str:
    """Convert a value that was decoded as UTF-8 with a surrogate for each invalid byte, as aiohttp decodes and as peers
    send."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def to_text(value: str) -> str:
    """Convert a value to the text that it is in UTF-8, with a surrogate for each invalid byte."""
    return value if value.isascii() else value.encode("latin-1").decode("utf-8", "surrogateescape")


from_bytes: Callable[[bytes], str] = methodcaller("decode", "latin-1")
to_bytes: Callable[[str], bytes] = methodcaller("encode", "latin-1")


def has_control_character(value: str) -> bool:
    return not value.isprintable() and _CONTROL.search(value) is not None
