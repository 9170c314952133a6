"""Checks an operator's file of a replica against the keys of a region file. It reads no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.region_file import ReplicaDocument
from mesh.faults import FileError
from mesh.values import FileContext
from mesh.yaml_file import faults_in

SECRETS = ("api_key_env", "api_key_file")
"""Keys of secrets, which only the gateway that serves the replica reads."""


def check_replica(file: Path, document: dict[str, Any]) -> str:
    """Return the replica's document as the JSON that gateways are sent. Raises FileError."""
    told = {key: each for key, each in document.items() if key not in SECRETS}
    try:
        ReplicaDocument.model_validate(told, context=FileContext(Path("/"), {}))
    except ValidationError as error:
        raise FileError(file, list(faults_in(error))) from error
    return json.dumps(document)
