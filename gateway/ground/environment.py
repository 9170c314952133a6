"""The only reader of the environment: everybody else is handed a mapping, and tests hand in their own. It writes there
only what a library that we load can be told in no other way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import TypeVar

from gateway.ground.faults import ConfigError

_OWN: MutableMapping[str, str] = os.environ  # noqa: TID251 - this module is the one reader
PROCESS_ENVIRONMENT: Mapping[str, str] = _OWN
GRPC_VERBOSITY_VARIABLE = "GRPC_VERBOSITY"

_Choice = TypeVar("_Choice", bound=StrEnum)


def choice_in(environ: Mapping[str, str], variable: str, default: _Choice) -> _Choice:
    """What the variable names, or the default where it is not set. Raises ConfigError."""
    choices, text = type(default), environ.get(variable, default)
    try:
        return choices(text)
    except ValueError as error:
        raise ConfigError(f"environment: {variable}: {text!r} is not one of {', '.join(choices)}") from error


def keep_grpc_quiet(environ: MutableMapping[str, str] = _OWN) -> None:
    """Unless an operator asks for it: the C library writes lines of its own to standard error, of handshakes that fail
    and of connections that are closed on it, among our lines of JSON.

    It looks once, as it is first imported: whoever runs a program of ours calls this before.
    """
    environ.setdefault(GRPC_VERBOSITY_VARIABLE, "NONE")
