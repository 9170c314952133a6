"""Parses the settings by which a command line changes a scenario: `KEY=VALUE`, with values written as in a YAML file.

It reads text and nothing else.
"""

from __future__ import annotations

import click


def pair(text: str) -> tuple[str, str]:
    """Split `KEY=VALUE` into key and text. Raises UsageError."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    return key, value


def setting(text: str) -> tuple[str, object]:
    """Parse `KEY=VALUE` into key and scalar value. Raises UsageError."""
    key, value = pair(text)
    return key, scalar(value)


def scalar(text: str) -> object:
    """Parse a scalar: numbers, `true`, `false` and `null` as in YAML; `on` and `off` stay words."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "null" else text
