"""Reads the environment, alone in the program: other modules are handed a mapping, and tests hand in their own. It
writes only settings that a loaded library can be given in no other way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import TypeVar

from mesh.faults import ConfigError

_OWN: MutableMapping[str, str] = os.environ  # noqa: TID251 - this module is the one reader
PROCESS_ENVIRONMENT: Mapping[str, str] = _OWN
GRPC_VERBOSITY_VARIABLE = "GRPC_VERBOSITY"

_Choice = TypeVar("_Choice", bound=StrEnum)


def choice_in(environ: Mapping[str, str], variable: str, default: _Choice) -> _Choice:
    """Choice that the variable names, or the default where it is not set. Raises ConfigError."""
    choices, text = type(default), environ.get(variable, default)
    try:
        return choices(text)
    except ValueError as error:
        raise ConfigError(f"environment: {variable}: {text!r} is not one of {', '.join(choices)}") from error


def keep_grpc_quiet(environ: MutableMapping[str, str] = _OWN) -> None:
    """Silence gRPC's C library, unless the operator has set its verbosity: it would write lines of its own about failed
    handshakes and closed connections to standard error, among the program's lines of JSON.

    The library reads the variable when it is first imported, so a program calls this before.
    """
    environ.setdefault(GRPC_VERBOSITY_VARIABLE, "NONE")
