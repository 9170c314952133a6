"""The only reader of the environment: everybody else is handed a mapping, and tests hand in their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gateway.ground.faults import ConfigError

PROCESS_ENVIRONMENT: Mapping[str, str] = os.environ  # noqa: TID251 - this module is the one reader

_Choice = TypeVar("_Choice", bound=StrEnum)


def choice_in(environ: Mapping[str, str], variable: str, default: _Choice) -> _Choice:
    """What the variable names, or the default where it is not set. Raises ConfigError."""
    choices, text = type(default), environ.get(variable, default)
    try:
        return choices(text)
    except ValueError as error:
        raise ConfigError(f"environment: {variable}: {text!r} is not one of {', '.join(choices)}") from error
