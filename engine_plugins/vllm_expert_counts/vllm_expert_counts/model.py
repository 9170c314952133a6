"""Fingerprint of a model: counts of two engines may be compared if their models have the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_OF_THE_FILES = frozenset(
    {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "quantization_config"}
)
"""Settings of how the model was saved or is loaded, which say nothing about its experts."""
_NAME_MAX = 64
_DIGEST_MAX = 16


def fingerprint(architecture: str, settings: Mapping[str, object]) -> str:
    """Return the fingerprint, at most 128 characters, all of them printable. `settings`: the model's own
    configuration."""
    told = {key: value for key, value in settings.items() if key not in _OF_THE_FILES}
    text = json.dumps(told, sort_keys=True, default=str)
    name = "".join(each for each in architecture if each.isascii() and each.isalnum())[:_NAME_MAX]
    return f"{name}/{hashlib.blake2b(text.encode(), digest_size=_DIGEST_MAX // 2).hexdigest()}"


def fingerprint_of(vllm_config: Any) -> str:
    model = vllm_config.model_config
    return fingerprint(model.architectures[0], model.hf_text_config.to_dict())
