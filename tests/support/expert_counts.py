"""Reads what the plug-in for vLLM says of experts, with nothing of the plug-in's own."""

from __future__ import annotations

import base64
import zlib

import numpy as np


def unpacked(text: object, dtype: str) -> list[int]:
    """`dtype`: "<u2" of a prompt, "<u4" of an answer."""
    assert isinstance(text, str)
    numbers: list[int] = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype=dtype).tolist()
    return numbers
