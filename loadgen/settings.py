"""How a command line changes a scenario: `KEY=VALUE`, with values as a YAML file would have them.

It reads text and nothing else.
"""

from __future__ import annotations

import click


def pair(text: str) -> tuple[str, str]:
    """Raises UsageError."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    return key, value


def setting(text: str) -> tuple[str, object]:
    """Raises UsageError."""
    key, value = pair(text)
    return key, scalar(value)


def scalar(text: str) -> object:
    """A number is a number, as in the file; `on` and `off` are words."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "null" else text
