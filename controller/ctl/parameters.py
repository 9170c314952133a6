"""Checks an operator's file of parameters against the keys of a region file. The controller decides which sections may
be set, and each gateway whether they agree with its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.region_file import CoreFile
from mesh.faults import FileError
from mesh.yaml_file import faults_in

_KNOWN_TO_GATEWAYS = "placement.policy"
"""Key whose plugged-in policies, and their options, only the gateways' machines know."""


def check_parameters(file: Path, sections: dict[str, Any]) -> None:
    """Raises FileError with the name of each key whose value no region file could hold."""
    told = {name: each for name, each in sections.items() if name in CoreFile.model_fields}
    try:
        CoreFile.model_validate(told)
    except ValidationError as error:
        faults = [each for each in faults_in(error) if not each.key.startswith(_KNOWN_TO_GATEWAYS)]
        if faults:
            raise FileError(file, faults) from error
