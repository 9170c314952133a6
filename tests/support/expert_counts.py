"""Decodes the expert counts that the plug-in for vLLM reports, without code of the plug-in."""

from __future__ import annotations

import base64
import zlib

import numpy as np


def unpacked(text: object, dtype: str) -> list[int]:
    """Decode counts. `dtype` is "<u2" for a prompt, "<u4" for an answer."""
    assert isinstance(text, str)
    numbers: list[int] = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype=dtype).tolist()
    return numbers
