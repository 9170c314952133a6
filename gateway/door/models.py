"""Lists the models that this gateway can reach, in the form that each kind of client expects."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.vocabulary import ModelName
from gateway.door.shapes import ErrorShape

_UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Creation time of all models: it is not known, and both kinds of client insist on one."""


def models_page(names: Sequence[ModelName], shape: ErrorShape) -> dict[str, object]:
    entries = [model_entry(name, shape) for name in names]
    if shape is not ErrorShape.MESSAGES:
        return {"object": "list", "data": entries}
    first, last = (names[0], names[-1]) if names else (None, None)
    return {"data": entries, "has_more": False, "first_id": first, "last_id": last}


def model_entry(name: ModelName, shape: ErrorShape) -> dict[str, object]:
    if shape is ErrorShape.MESSAGES:
        return {"type": "model", "id": name, "display_name": name, "created_at": _UNKNOWN_TIME, "lifecycle": "active"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "nightside"}
